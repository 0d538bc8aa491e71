"""Tiny random configurations of `transformers` architectures, built from their configuration classes: no hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spec import Cache, Input, Spec
from torch import nn

VOCABULARY = 99
IDS = Input(("batch", "length"), high=VOCABULARY)
MASK = Input(("batch", "length"), ones=True)
IMAGE = Input(("batch", 3, 32, 32))
TEXT_EXAMPLE, TEXT_UNSEEN = {"batch": 2, "length": 9}, ({"batch": 1, "length": 13}, {"batch": 3, "length": 6})
PAIR_EXAMPLE = {"batch": 2, "length": 9, "target": 7}
PAIR_UNSEEN = ({"batch": 1, "length": 13, "target": 4}, {"batch": 3, "length": 6, "target": 10})
BATCH_EXAMPLE, BATCH_UNSEEN = {"batch": 2}, ({"batch": 1}, {"batch": 3})
# The step that fills a cache: one to several new tokens after a past of another length.
STEP_EXAMPLE = {"batch": 2, "length": 3, "past": 5}
STEP_UNSEEN = ({"batch": 1, "length": 1, "past": 9}, {"batch": 3, "length": 4, "past": 2})

# Read by most configurations under these names; what one of them does not know, it ignores. Some take offence at a
# name: `...` takes it out again.
TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,  # 0.02 leaves attention all but even, whatever the mask
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TINY_DECODER = {**TINY, "num_key_value_heads": 2, "head_dim": 8}
TINY_EXPERTS = {
    **TINY_DECODER,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
TINY_VISION = {**TINY, "image_size": 32, "patch_size": 8, "num_channels": 3}
SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 128,
    "init_std": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}

SPECS: dict[str, Spec] = {}


def build(model: str, config: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        given = {name: value for name, value in settings.items() if value is not ...}
        return getattr(transformers, model)(getattr(transformers, config)(**given))

    return make


def add(name: str, model: str, settings: dict[str, Any], inputs: dict[str, Any], **more: Any) -> None:
    """`more` is for the fields of Spec; the configuration class is found by the model's name, unless it is set."""
    settings = dict(settings)
    config = settings.pop("config", None) or _config_of(model)
    example, unseen = more.pop("sizes", None) or _sizes_of(inputs)
    SPECS[name] = Spec(build(model, config, settings), inputs, example, unseen, **more)


def _sizes_of(inputs: dict[str, Any]) -> tuple[dict[str, int], tuple[dict[str, int], ...]]:
    if any(isinstance(i, Cache) for i in inputs.values()):
        return STEP_EXAMPLE, STEP_UNSEEN
    dims = {d for i in inputs.values() for d in i.dynamic.values()}
    if "target" in dims:
        return PAIR_EXAMPLE, PAIR_UNSEEN
    return (TEXT_EXAMPLE, TEXT_UNSEEN) if "length" in dims else (BATCH_EXAMPLE, BATCH_UNSEEN)


def _config_of(model: str) -> str:
    for ending in (
        "ForConditionalGeneration",
        "ForCausalLM",
        "LMHeadModel",
        "ForObjectDetection",
        "ForImageClassification",
        "Model",
    ):
        if model.endswith(ending):
            return model.removesuffix(ending) + "Config"
    raise ValueError(f"name the configuration of {model}")


def encoder(name: str, model: str, **settings: Any) -> None:
    add(name, model, {**TINY, **settings}, {"input_ids": IDS, "attention_mask": MASK})


def decoder(name: str, model: str, base: dict[str, Any] = TINY_DECODER, **settings: Any) -> None:
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    add(name, model, {**base, **settings}, inputs, fixed={"use_cache": False})


def step(name: str, model: str, cache: Cache, **settings: Any) -> None:
    """One step of generation: new tokens and a filled DynamicCache in, logits and the longer cache out."""
    inputs = {"input_ids": IDS, "past_key_values": cache}
    add(f"{name}-step", model, {**TINY_DECODER, **settings}, inputs, fixed={"use_cache": True})


def seq2seq(name: str, model: str, base: dict[str, Any] = SEQ2SEQ, **settings: Any) -> None:
    target = Input(("batch", "target"), high=VOCABULARY)
    inputs = {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": target}
    add(name, model, {**base, **settings}, inputs, fixed={"use_cache": False})


def vision(name: str, model: str, image: Input = IMAGE, **settings: Any) -> None:
    add(name, model, {**TINY_VISION, **settings}, {"pixel_values": image})


# Encoders of text.
encoder("albert", "AlbertModel", embedding_size=16)
encoder("bert", "BertModel")
encoder("big-bird", "BigBirdModel", attention_type="original_full")
encoder("camembert", "CamembertModel")
encoder("canine", "CanineModel", num_hash_buckets=64, downsampling_rate=2, local_transformer_stride=8)
encoder("convbert", "ConvBertModel", embedding_size=32)
encoder("data2vec-text", "Data2VecTextModel")
encoder("deberta", "DebertaModel", relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False)
encoder("deberta-v2", "DebertaV2Model", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8)
encoder("distilbert", "DistilBertModel", dim=32, hidden_dim=64, n_layers=2, n_heads=4)
encoder("electra", "ElectraModel", embedding_size=16)
encoder("ernie", "ErnieModel")
encoder("esm", "EsmModel", position_embedding_type="rotary", mask_token_id=4, token_dropout=True)
encoder("eurobert", "EuroBertModel", num_key_value_heads=2)
encoder("flaubert", "FlaubertModel", emb_dim=32, n_layers=2, n_heads=4)
encoder("fnet", "FNetModel")
encoder(
    "funnel",
    "FunnelModel",
    num_hidden_layers=...,
    block_sizes=[1, 1],
    num_decoder_layers=1,
    d_model=32,
    n_head=4,
    d_head=8,
    d_inner=64,
)
encoder("ibert", "IBertModel")
encoder("layoutlm", "LayoutLMModel")
encoder("longformer", "LongformerModel", attention_window=4)
encoder("luke", "LukeModel", entity_vocab_size=20, entity_emb_size=16)
encoder("megatron-bert", "MegatronBertModel")
encoder("mobilebert", "MobileBertModel", embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32)
encoder("modernbert", "ModernBertModel", global_attn_every_n_layers=2, local_attention=8)
encoder("mpnet", "MPNetModel")
encoder("mra", "MraModel")
encoder("nomic-bert", "NomicBertModel")
encoder("nystromformer", "NystromformerModel", num_landmarks=64, conv_kernel_size=5)
encoder("rembert", "RemBertModel", input_embedding_size=16, output_embedding_size=16)
encoder("roberta", "RobertaModel")
encoder("roberta-prelayernorm", "RobertaPreLayerNormModel")
encoder("roc-bert", "RoCBertModel", pronunciation_vocab_size=99, shape_vocab_size=99)
encoder("roformer", "RoFormerModel", embedding_size=32)
encoder("splinter", "SplinterModel")
encoder("squeezebert", "SqueezeBertModel", embedding_size=32)
encoder("xlm", "XLMModel", emb_dim=32, n_layers=2, n_heads=4)
encoder("xlm-roberta", "XLMRobertaModel")
encoder("xlm-roberta-xl", "XLMRobertaXLModel")
encoder("xlnet", "XLNetModel", max_position_embeddings=..., d_model=32, n_layer=2, n_head=4, d_inner=64)
encoder("xmod", "XmodModel", default_language="en_XX")
encoder("yoso", "YosoModel", use_expectation=True)

# Decoders of text.
decoder("apertus", "ApertusForCausalLM")
decoder("biogpt", "BioGptForCausalLM")
decoder("bitnet", "BitNetForCausalLM")
decoder("bloom", "BloomForCausalLM", n_layer=2, n_head=4)
decoder("codegen", "CodeGenForCausalLM", n_embd=32, n_layer=2, n_head=4, rotary_dim=4)
decoder("cohere", "CohereForCausalLM")
decoder("cohere2", "Cohere2ForCausalLM", sliding_window=4)
decoder("ctrl", "CTRLLMHeadModel", n_embd=32, n_layer=2, n_head=4, dff=64)
decoder("diffllama", "DiffLlamaForCausalLM")
decoder("ernie4_5", "Ernie4_5ForCausalLM")
decoder("exaone4", "Exaone4ForCausalLM", sliding_window=4)
decoder("falcon", "FalconForCausalLM", head_dim=...)
decoder("gemma", "GemmaForCausalLM")
decoder("gemma2", "Gemma2ForCausalLM", sliding_window=4)
decoder("gemma3", "Gemma3ForCausalLM", config="Gemma3TextConfig", sliding_window=4)
decoder("glm4", "Glm4ForCausalLM")
decoder("gpt2", "GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4)
decoder("gpt-bigcode", "GPTBigCodeForCausalLM", n_embd=32, n_layer=2, n_head=4)
decoder(
    "gpt-neo", "GPTNeoForCausalLM", num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=4
)
decoder("gpt-neox", "GPTNeoXForCausalLM")
decoder("gptj", "GPTJForCausalLM", n_embd=32, n_layer=2, n_head=4, rotary_dim=4)
decoder("granite", "GraniteForCausalLM")
decoder("helium", "HeliumForCausalLM")
decoder("llama", "LlamaForCausalLM")
decoder("mistral", "MistralForCausalLM", sliding_window=4)
decoder("mpt", "MptForCausalLM", d_model=32, n_heads=4, n_layers=2)
decoder("nemotron", "NemotronForCausalLM")
decoder("olmo2", "Olmo2ForCausalLM")
decoder("openai-gpt", "OpenAIGPTLMHeadModel", n_embd=32, n_layer=2, n_head=4)
decoder("opt", "OPTForCausalLM", ffn_dim=64, word_embed_proj_dim=32)
decoder("persimmon", "PersimmonForCausalLM")
decoder("phi", "PhiForCausalLM")
decoder("phi3", "Phi3ForCausalLM")
decoder("qwen2", "Qwen2ForCausalLM")
decoder("qwen3", "Qwen3ForCausalLM")
decoder("smollm3", "SmolLM3ForCausalLM")
decoder("stablelm", "StableLmForCausalLM")
decoder("starcoder2", "Starcoder2ForCausalLM")
decoder("xglm", "XGLMForCausalLM", d_model=32, num_layers=2, attention_heads=4, ffn_dim=64)

# Decoders with their cache.
GROUPED, WHOLE = Cache(heads=2, width=8), Cache(heads=4, width=8)
step("bloom", "BloomForCausalLM", WHOLE, n_layer=2, n_head=4)
step("cohere", "CohereForCausalLM", GROUPED)
step("falcon", "FalconForCausalLM", Cache(heads=1, width=8), head_dim=...)
step("gpt2", "GPT2LMHeadModel", WHOLE, n_embd=32, n_layer=2, n_head=4)
step("gpt-neox", "GPTNeoXForCausalLM", WHOLE)
step("gptj", "GPTJForCausalLM", WHOLE, n_embd=32, n_layer=2, n_head=4, rotary_dim=4)
step("llama", "LlamaForCausalLM", GROUPED)
step("mixtral", "MixtralForCausalLM", GROUPED, num_local_experts=4, num_experts_per_tok=2)
step("opt", "OPTForCausalLM", WHOLE, ffn_dim=64, word_embed_proj_dim=32)
step("phi3", "Phi3ForCausalLM", GROUPED)
step("qwen3", "Qwen3ForCausalLM", GROUPED)

# Mixtures of experts.
decoder(
    "deepseek-v3",
    "DeepseekV3ForCausalLM",
    TINY_EXPERTS,
    n_routed_experts=4,
    n_group=2,
    topk_group=1,
    kv_lora_rank=8,
    q_lora_rank=16,
    qk_rope_head_dim=8,
    v_head_dim=8,
    qk_nope_head_dim=8,
    num_key_value_heads=4,
    first_k_dense_replace=1,
)
decoder("gpt-oss", "GptOssForCausalLM", TINY_EXPERTS, sliding_window=4)
decoder("granitemoe", "GraniteMoeForCausalLM", TINY_EXPERTS)
decoder("mixtral", "MixtralForCausalLM", TINY_EXPERTS)
decoder("olmoe", "OlmoeForCausalLM", TINY_EXPERTS)
decoder("phimoe", "PhimoeForCausalLM", TINY_EXPERTS)
decoder("qwen2-moe", "Qwen2MoeForCausalLM", TINY_EXPERTS, shared_expert_intermediate_size=32)
decoder("qwen3-moe", "Qwen3MoeForCausalLM", TINY_EXPERTS)

# State spaces and other recurrences.
decoder(
    "bamba",
    "BambaForCausalLM",
    attn_layer_indices=[1],
    mamba_n_heads=8,
    mamba_d_head=8,
    mamba_d_state=8,
    mamba_chunk_size=8,
)
decoder("falcon-mamba", "FalconMambaForCausalLM", state_size=8)
decoder(
    "jamba",
    "JambaForCausalLM",
    TINY_EXPERTS,
    attn_layer_period=2,
    attn_layer_offset=1,
    expert_layer_period=2,
    expert_layer_offset=1,
    mamba_d_state=8,
    use_mamba_kernels=False,
)
decoder("mamba", "MambaForCausalLM", state_size=8)
decoder("mamba2", "Mamba2ForCausalLM", num_heads=8, head_dim=8, state_size=8, n_groups=2, chunk_size=8)
decoder("recurrent-gemma", "RecurrentGemmaForCausalLM", lru_width=32, attention_window_size=8, num_hidden_layers=3)
add("rwkv", "RwkvForCausalLM", {**TINY, "context_length": 64}, {"input_ids": IDS}, fixed={"use_cache": False})
decoder(
    "zamba2",
    "Zamba2ForCausalLM",
    mamba_ngroups=1,
    n_mamba_heads=8,
    mamba_d_state=8,
    chunk_size=8,
    num_mem_blocks=1,
    layers_block_type=["mamba", "hybrid"],
    use_mamba_kernels=False,
    head_dim=...,
)

# Encoder-decoders.
seq2seq("bart", "BartModel")
seq2seq("bigbird-pegasus", "BigBirdPegasusModel", attention_type="original_full")
seq2seq("blenderbot", "BlenderbotModel")
seq2seq("fsmt", "FSMTModel", src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY, langs=["en", "de"])
seq2seq("led", "LEDModel", attention_window=4, max_encoder_position_embeddings=128, max_decoder_position_embeddings=128)
seq2seq("longt5", "LongT5Model", T5, local_radius=3)
seq2seq("m2m-100", "M2M100Model")
seq2seq("marian", "MarianModel")
seq2seq("mbart", "MBartModel")
seq2seq("mt5", "MT5Model", T5)
seq2seq("mvp", "MvpModel")
seq2seq("nllb-moe", "NllbMoeModel", num_experts=4, encoder_sparse_step=2, decoder_sparse_step=2)
seq2seq("pegasus", "PegasusModel")
seq2seq("pegasus-x", "PegasusXModel", block_size=4, num_global_tokens=2)
seq2seq("plbart", "PLBartModel")
seq2seq(
    "prophetnet",
    "ProphetNetModel",
    {**TINY, "num_hidden_layers": ...},
    num_encoder_layers=2,
    num_decoder_layers=2,
    num_encoder_attention_heads=4,
    num_decoder_attention_heads=4,
)
seq2seq(
    "switch-transformers",
    "SwitchTransformersModel",
    T5,
    num_experts=4,
    num_sparse_encoder_layers=1,
    num_sparse_decoder_layers=1,
)
seq2seq("t5", "T5Model", T5)
seq2seq("t5-generation", "T5ForConditionalGeneration", T5)
seq2seq("umt5", "UMT5Model", T5)

# Pictures.
vision("beit", "BeitModel", use_relative_position_bias=True)
vision("bit", "BitModel", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_groups=2, num_hidden_layers=...)
vision("convnext", "ConvNextModel", hidden_sizes=[16, 32], depths=[1, 1], num_stages=2)
vision("convnextv2", "ConvNextV2Model", hidden_sizes=[16, 32], depths=[1, 1], num_stages=2)
vision("data2vec-vision", "Data2VecVisionModel", use_relative_position_bias=True)
vision("deit", "DeiTModel")
vision("dinov2", "Dinov2Model")
vision("dinov3-vit", "DINOv3ViTModel")
vision(
    "dpt",
    "DPTForDepthEstimation",
    config="DPTConfig",
    num_hidden_layers=4,
    backbone_out_indices=[0, 1, 2, 3],
    neck_hidden_sizes=[8, 8, 16, 16],
    fusion_hidden_size=8,
)
vision("focalnet", "FocalNetModel", embed_dim=16, depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3])
vision(
    "glpn",
    "GLPNModel",
    hidden_sizes=[16, 16, 32, 32],
    depths=[1, 1, 1, 1],
    num_attention_heads=[1, 1, 2, 2],
    decoder_hidden_size=16,
)
vision(
    "hiera",
    "HieraModel",
    embed_dim=16,
    depths=[1, 1, 1, 1],
    num_heads=[1, 2, 2, 4],
    image_size=[64, 64],
    patch_size=[7, 7],
    image=Input(("batch", 3, 64, 64)),
)
vision("ijepa", "IJepaModel")
vision(
    "levit",
    "LevitModel",
    image=Input(("batch", 3, 64, 64)),
    image_size=64,
    hidden_sizes=[16, 24, 32],
    num_attention_heads=[2, 2, 4],
    depths=[1, 1, 1],
    key_dim=[8, 8, 8],
    patch_size=16,
)
vision("mobilenet-v1", "MobileNetV1Model", depth_multiplier=0.25)
vision("mobilenet-v2", "MobileNetV2Model", depth_multiplier=0.25)
vision(
    "mobilevit", "MobileViTModel", hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 32], patch_size=2
)
vision("poolformer", "PoolFormerModel", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1])
vision(
    "pvt",
    "PvtModel",
    hidden_sizes=[16, 16, 32, 32],
    depths=[1, 1, 1, 1],
    num_attention_heads=[1, 1, 2, 2],
    patch_sizes=[4, 2, 2, 2],
)
vision("pvt-v2", "PvtV2Model", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2])
vision(
    "regnet",
    "RegNetModel",
    num_hidden_layers=...,
    embedding_size=16,
    hidden_sizes=[16, 32],
    depths=[1, 1],
    groups_width=8,
)
vision("resnet", "ResNetModel", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1])
vision(
    "segformer",
    "SegformerModel",
    hidden_sizes=[16, 16, 32, 32],
    depths=[1, 1, 1, 1],
    num_attention_heads=[1, 1, 2, 2],
    decoder_hidden_size=16,
)
vision("siglip-vision", "SiglipVisionModel")
vision("swiftformer", "SwiftFormerModel", depths=[1, 1, 1, 1], embed_dims=[16, 16, 32, 32])
vision(
    "swin",
    "SwinModel",
    num_attention_heads=...,
    num_hidden_layers=...,
    embed_dim=16,
    depths=[2, 1],
    num_heads=[2, 4],
    window_size=4,
    patch_size=2,
)
vision(
    "swinv2",
    "Swinv2Model",
    num_attention_heads=...,
    num_hidden_layers=...,
    embed_dim=16,
    depths=[2, 1],
    num_heads=[2, 4],
    window_size=4,
    patch_size=2,
)
vision(
    "swin2sr",
    "Swin2SRModel",
    num_attention_heads=...,
    num_hidden_layers=...,
    embed_dim=16,
    depths=[2, 1],
    num_heads=[2, 4],
    window_size=4,
    patch_size=1,
)
vision("vit", "ViTModel")
vision("vit-msn", "ViTMSNModel")
vision("yolos", "YolosModel", image_size=[32, 32], num_detection_tokens=4)

# Detection and segmentation.
RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 16, 32],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage4"],
}
DETECTION = {**SEQ2SEQ, "backbone_config": RESNET, "num_queries": 5, "use_timm_backbone": False, "vocab_size": ...}
PICTURE = {"pixel_values": Input(("batch", 3, 64, 64))}
add("conditional-detr", "ConditionalDetrModel", DETECTION, PICTURE)
add("detr", "DetrForObjectDetection", DETECTION, PICTURE)
add(
    "table-transformer",
    "TableTransformerForObjectDetection",
    {**DETECTION, "config": "TableTransformerConfig"},
    PICTURE,
)

# Sound.
WAVE = {"input_values": Input(("batch", "samples"))}
WAVE_SIZES = ({"batch": 2, "samples": 800}, ({"batch": 1, "samples": 1000}, {"batch": 3, "samples": 610}))
SOUND = {
    **TINY,
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 4, 2],
    "conv_kernel": [10, 4, 2],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
add(
    "data2vec-audio",
    "Data2VecAudioModel",
    {**SOUND, "conv_pos_kernel_size": 3, "num_conv_pos_embeddings": 2},
    WAVE,
    sizes=WAVE_SIZES,
)
add("hubert", "HubertModel", SOUND, WAVE, sizes=WAVE_SIZES)
add("sew", "SEWModel", SOUND, WAVE, sizes=WAVE_SIZES)
add("unispeech", "UniSpeechModel", SOUND, WAVE, sizes=WAVE_SIZES)
add("wav2vec2", "Wav2Vec2Model", SOUND, WAVE, sizes=WAVE_SIZES)
add("wav2vec2-ctc", "Wav2Vec2ForCTC", {**SOUND, "config": "Wav2Vec2Config"}, WAVE, sizes=WAVE_SIZES)
add("wavlm", "WavLMModel", SOUND, WAVE, sizes=WAVE_SIZES)
add(
    "ast",
    "ASTModel",
    {**TINY, "patch_size": 4, "num_mel_bins": 16, "max_length": 24, "frequency_stride": 4, "time_stride": 4},
    {"input_values": Input(("batch", 24, 16))},
)
TARGET = Input(("batch", "target"), high=VOCABULARY)
HEARD = ({"batch": 2, "target": 7}, ({"batch": 1, "target": 4}, {"batch": 3, "target": 10}))
add(
    "whisper",
    "WhisperModel",
    {**SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 64},
    {"input_features": Input(("batch", 16, 40)), "decoder_input_ids": TARGET},
    sizes=HEARD,
    fixed={"use_cache": False},
)
add(
    "speech-to-text",
    "Speech2TextModel",
    {
        **SEQ2SEQ,
        "input_feat_per_channel": 16,
        "conv_channels": 16,
        "max_source_positions": 64,
        "max_target_positions": 64,
    },
    {"input_features": Input(("batch", 40, 16)), "decoder_input_ids": TARGET},
    sizes=HEARD,
    fixed={"use_cache": False},
)

# Several kinds of input.
SEEN = (
    {"batch": 2, "texts": 3, "length": 9},
    ({"batch": 1, "texts": 2, "length": 13}, {"batch": 3, "texts": 1, "length": 6}),
)
TEXTS = {
    "input_ids": Input(("texts", "length"), high=VOCABULARY),
    "pixel_values": IMAGE,
    "attention_mask": Input(("texts", "length"), ones=True),
}
TOWERS = {"text_config": TINY, "vision_config": TINY_VISION, "projection_dim": 16}
add("altclip", "AltCLIPModel", TOWERS, TEXTS, sizes=SEEN)
add("chinese-clip", "ChineseCLIPModel", TOWERS, TEXTS, sizes=SEEN)
add("clip", "CLIPModel", TOWERS, TEXTS, sizes=SEEN)
add("siglip", "SiglipModel", TOWERS, TEXTS, sizes=SEEN)
BOXED = {"input_ids": IDS, "bbox": Input(("batch", "length", 4), high=90, ordered=True), "attention_mask": MASK}
add("layoutlm-boxes", "LayoutLMModel", TINY, BOXED)
add("lilt", "LiltModel", {**TINY, "hidden_size": 48, "channel_shrink_ratio": 2}, BOXED)
add(
    "layoutlmv3",
    "LayoutLMv3Model",
    {
        **TINY,
        "coordinate_size": 6,
        "shape_size": 4,
        "input_size": 32,
        "patch_size": 8,
        "rel_pos_bins": 8,
        "max_rel_pos": 16,
        "rel_2d_pos_bins": 8,
        "max_rel_2d_pos": 16,
    },
    {**BOXED, "pixel_values": IMAGE},
)
add("blip-text-image", "BlipModel", TOWERS, TEXTS, sizes=SEEN)
add(
    "visual-bert",
    "VisualBertModel",
    {**TINY, "visual_embedding_dim": 16},
    {
        "input_ids": IDS,
        "attention_mask": MASK,
        "visual_embeds": Input(("batch", 5, 16)),
        "visual_attention_mask": Input(("batch", 5), ones=True),
    },
)
add(
    "lxmert",
    "LxmertModel",
    {**TINY, "num_hidden_layers": ..., "l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 16},
    {
        "input_ids": IDS,
        "attention_mask": MASK,
        "visual_feats": Input(("batch", 5, 16)),
        "visual_pos": Input(("batch", 5, 4)),
    },
)

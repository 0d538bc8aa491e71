"""Encoders and decoders of text, adapters, attention of other kinds."""

from __future__ import annotations

from typing import Any

from registry import add, feature
from spec import Input
from torch import Tensor, nn

LENGTHS = {"batch": (2, 1, 3), "length": (9, 13, 6)}
LIMIT = {"limits": {"length": 64}}
IDS = {"x": Input(("batch", "length"), high=99)}
TINY: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
TOKENS = {"input_ids": IDS["x"], "attention_mask": Input(("batch", "length"), ones=True)}


@add("x-transformers/decoder", IDS, **LENGTHS, **LIMIT)
def decoder() -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    return TransformerWrapper(num_tokens=99, max_seq_len=64, attn_layers=Decoder(dim=16, depth=2, heads=2))


@add("x-transformers/rotary", IDS, **LENGTHS)
def rotary() -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True, attn_kv_heads=1)
    return TransformerWrapper(num_tokens=99, max_seq_len=64, use_abs_pos_emb=False, attn_layers=layers)


@add("x-transformers/alibi", IDS, **LENGTHS)
def alibi() -> nn.Module:
    from x_transformers import Encoder, TransformerWrapper

    layers = Encoder(dim=16, depth=2, heads=4, alibi_pos_bias=True, alibi_num_heads=2)
    return TransformerWrapper(num_tokens=99, max_seq_len=64, use_abs_pos_emb=False, attn_layers=layers)


@add("x-transformers/relative-bias", IDS, **LENGTHS, **LIMIT)
def relative() -> nn.Module:
    from x_transformers import Encoder, TransformerWrapper

    layers = Encoder(dim=16, depth=2, heads=2, rel_pos_bias=True)
    return TransformerWrapper(num_tokens=99, max_seq_len=64, attn_layers=layers)


@add("sentence-transformers/mean", {"input": Input(("batch", "length"), high=99)}, **LENGTHS, **LIMIT)
def sentence() -> nn.Module:
    """The modules that `SentenceTransformer` runs, given ids and a mask as it gives them."""
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
    from transformers import BertConfig, BertModel

    class Sentences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel(BertConfig(**TINY))
            self.rest = nn.Sequential(Pooling(32, pooling_mode="mean"), Dense(32, 8), Normalize())

        def forward(self, input: Tensor) -> Tensor:
            mask = (input > 5).long()
            tokens = self.bert(input_ids=input, attention_mask=mask)[0]
            return self.rest({"token_embeddings": tokens, "attention_mask": mask})["sentence_embedding"]

    return Sentences()


def lora(model: nn.Module, **settings: Any) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, **settings))


@add("peft/lora-bert", TOKENS, **LENGTHS, **LIMIT)
def lora_bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return lora(BertModel(BertConfig(**TINY)), target_modules=["query", "value"])


@add("peft/dora-llama", TOKENS, **LENGTHS, fixed={"use_cache": False})
def dora_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**TINY, num_key_value_heads=2))
    return lora(model, target_modules=["q_proj", "v_proj"], use_dora=True)


@add(
    "peft/ia3-t5",
    {**TOKENS, "decoder_input_ids": Input(("batch", "target"), high=99)},
    **LENGTHS,
    target=(7, 4, 10),
    fixed={"use_cache": False},
)
def ia3() -> nn.Module:
    from peft import IA3Config, get_peft_model
    from transformers import T5Config, T5ForConditionalGeneration

    tiny = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    model = T5ForConditionalGeneration(T5Config(**tiny, decoder_start_token_id=0, pad_token_id=0))
    targets = {"target_modules": ["k", "v", "wo"], "feedforward_modules": ["wo"]}
    return get_peft_model(model, IA3Config(**targets, init_ia3_weights=False))


@add("peft/prompt-tuning", TOKENS, **LENGTHS, fixed={"use_cache": False})
def prompts() -> nn.Module:
    from peft import PromptTuningConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**TINY, num_key_value_heads=2))
    return get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))


@add("performer-pytorch/performer", IDS, **LENGTHS, **LIMIT)
def performer() -> nn.Module:
    from performer_pytorch import PerformerLM

    return PerformerLM(num_tokens=99, max_seq_len=64, dim=16, depth=1, heads=2, dim_head=8, nb_features=16)


@add("rotary-embedding-torch/attention", feature("x", "batch", "length", 32), **LENGTHS)
def rotary_attention() -> nn.Module:
    import torch
    from rotary_embedding_torch import RotaryEmbedding

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rotary = RotaryEmbedding(dim=8)
            self.qkv = nn.Linear(32, 96)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (p.unflatten(-1, (2, 16)).transpose(1, 2) for p in self.qkv(x).chunk(3, dim=-1))
            q, k = (self.rotary.rotate_queries_or_keys(p) for p in (q, k))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    return Attention()


@add("local-attention/transformer", IDS, batch=(2, 1, 3), length=(32, 48, 19), limits={"length": 64})
def local_attention() -> nn.Module:
    from local_attention import LocalTransformer

    return LocalTransformer(
        num_tokens=99, dim=16, depth=1, heads=2, dim_head=8, max_seq_len=64, local_attn_window_size=8
    )


@add("vector-quantize-pytorch/residual", feature("x", "batch", "length", 16), **LENGTHS)
def residual_quantizer() -> nn.Module:
    from vector_quantize_pytorch import ResidualVQ

    return ResidualVQ(dim=16, num_quantizers=2, codebook_size=32)


@add("vector-quantize-pytorch/fsq", feature("z", "batch", "length", 4), **LENGTHS)
def scalar_quantizer() -> nn.Module:
    from vector_quantize_pytorch import FSQ

    return FSQ(levels=[8, 5, 5, 5])


@add("lightning/module", IDS, **LENGTHS)
def lightning_module() -> nn.Module:
    """A classifier as its users write it, with what only training needs."""
    import torch
    from lightning import LightningModule
    from torchmetrics.classification import MulticlassAccuracy

    class Classifier(LightningModule):
        def __init__(self, width: int = 16) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.embed = nn.Embedding(99, width)
            self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
            self.head = nn.Linear(2 * width, 3)
            self.accuracy = MulticlassAccuracy(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(self.embed(x))[0].mean(dim=1))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            loss = nn.functional.cross_entropy(self(x), y)
            self.log("accuracy", self.accuracy(self(x), y))
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    return Classifier()

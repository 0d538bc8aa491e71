"""Codecs, separation, speech and spectra."""

from __future__ import annotations

from typing import Any

from registry import add, feature
from spec import Input
from torch import Tensor, nn

WAVE = {"batch": (2, 1, 3), "samples": (4000, 6000, 3001)}


@add("encodec/encodec", feature("x", "batch", 1, "samples"), **WAVE)
def encodec() -> nn.Module:
    from encodec.model import EncodecModel
    from encodec.modules import SEANetDecoder, SEANetEncoder
    from encodec.quantization import ResidualVectorQuantizer

    small: dict[str, Any] = {"n_filters": 4, "dimension": 16, "ratios": [4, 2], "lstm": 1, "causal": True}
    quantizer = ResidualVectorQuantizer(dimension=16, n_q=4, bins=32)
    encoder, decoder = SEANetEncoder(**small), SEANetDecoder(**small)
    return EncodecModel(encoder, decoder, quantizer, [1.5, 3.0], 8000, 1)


@add("vocos/vocos", feature("features_input", "batch", 20, "frames"), batch=(2, 1, 3), frames=(30, 41, 17))
def vocos() -> nn.Module:
    from vocos.heads import ISTFTHead
    from vocos.models import VocosBackbone

    class Decode(nn.Module):
        """What `Vocos.decode` does."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone = VocosBackbone(20, 16, 32, 2)
            self.head = ISTFTHead(16, 64, 16, padding="same")

        def forward(self, features_input: Tensor) -> Tensor:
            return self.head(self.backbone(features_input))

    return Decode()


@add("demucs/hdemucs", feature("mix", "batch", 2, "samples"), batch=(1, 2, 1), samples=(8192, 12000, 10000))
def hdemucs() -> nn.Module:
    from demucs.hdemucs import HDemucs

    return HDemucs(["voice", "rest"], channels=4, depth=5, nfft=1024, dconv_lstm=3, dconv_attn=3)


@add("demucs/htdemucs", feature("mix", "batch", 2, "samples"), batch=(1, 2, 1), samples=(8192, 12000, 10000))
def htdemucs() -> nn.Module:
    from demucs.htdemucs import HTDemucs

    return HTDemucs(["voice", "rest"], channels=8, depth=4, nfft=1024, t_layers=1, t_heads=2, use_train_segment=False)


@add("demucs/demucs", feature("mix", "batch", 2, "samples"), batch=(1, 2, 1), samples=(8192, 12000, 10001))
def demucs() -> nn.Module:
    from demucs.demucs import Demucs

    return Demucs(["voice", "rest"], channels=4, depth=3, lstm_layers=1)


@add("asteroid-filterbanks/stft", feature("waveform", "batch", 1, "samples"), **WAVE)
def filterbank() -> nn.Module:
    from asteroid_filterbanks import STFTFB, Encoder

    return Encoder(STFTFB(n_filters=64, kernel_size=64, stride=32))


@add("speechbrain/ecapa-tdnn", feature("x", "batch", "frames", 20), batch=(2, 1, 3), frames=(40, 61, 33))
def ecapa() -> nn.Module:
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN

    return ECAPA_TDNN(
        20, channels=[16, 16, 16, 16, 48], attention_channels=8, lin_neurons=12, se_channels=8, res2net_scale=4
    )


@add("speechbrain/sepformer", feature("mix", "batch", "samples"), batch=(2, 1, 3), samples=(800, 1200, 501))
def sepformer() -> nn.Module:
    import torch
    from speechbrain.lobes.models.dual_path import Decoder, Dual_Path_Model, Encoder, SBTransformerBlock

    class Sepformer(nn.Module):
        """As `speechbrain.inference.SepformerSeparation` puts the parts together."""

        def __init__(self) -> None:
            super().__init__()
            block: dict[str, Any] = {"num_layers": 1, "d_model": 16, "nhead": 2, "d_ffn": 32}
            intra, inter = (SBTransformerBlock(**block, norm_before=True) for _ in range(2))
            self.encoder = Encoder(kernel_size=16, out_channels=16)
            self.masknet = Dual_Path_Model(16, 16, intra, inter, num_layers=1, K=20, num_spks=2)
            self.decoder = Decoder(in_channels=16, out_channels=1, kernel_size=16, stride=8, bias=False)

        def forward(self, mix: Tensor) -> Tensor:
            encoded = self.encoder(mix)
            mask = self.masknet(encoded)
            parts = torch.stack([encoded] * 2) * mask
            sources = torch.cat([self.decoder(parts[i]).unsqueeze(-1) for i in range(2)], dim=-1)
            length, estimated = mix.size(1), sources.size(1)
            if length > estimated:
                return torch.nn.functional.pad(sources, (0, 0, 0, length - estimated))
            return sources[:, :length, :]

    return Sepformer()


@add("speechbrain/conformer", feature("src", "batch", "frames", 16), batch=(2, 1, 3), frames=(30, 41, 22))
def speech_conformer() -> nn.Module:
    from speechbrain.lobes.models.transformer.Conformer import ConformerEncoder
    from speechbrain.nnet.attention import RelPosEncXL

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions = RelPosEncXL(16)
            self.encoder = ConformerEncoder(num_layers=1, d_model=16, d_ffn=32, nhead=2, kernel_size=7)

        def forward(self, src: Tensor) -> Tensor:
            return self.encoder(src, pos_embs=self.positions(src))[0]

    return Encoder()


@add("conformer/conformer", feature("x", "batch", "frames", 16), batch=(2, 1, 3), frames=(30, 41, 22))
def conformer() -> nn.Module:
    from conformer import Conformer

    return Conformer(16, depth=2, dim_head=8, heads=2, conv_kernel_size=7)


@add("nnaudio/mel", feature("x", "batch", "samples"), **WAVE)
def mel() -> nn.Module:
    from nnAudio.features import MelSpectrogram

    return MelSpectrogram(sr=8000, n_fft=256, n_mels=20, hop_length=64, verbose=False)


@add("nnaudio/cqt", feature("x", "batch", "samples"), **WAVE)
def cqt() -> nn.Module:
    from nnAudio.features import CQT1992v2

    return CQT1992v2(sr=8000, hop_length=64, fmin=110, n_bins=24, verbose=False)


@add(
    "descript-audio-codec/dac",
    feature("audio_data", "batch", 1, "samples"),
    batch=(2, 1, 3),
    samples=(2048, 3072, 4096),
)
def dac() -> nn.Module:
    from dac.model import DAC

    return DAC(
        encoder_dim=4, encoder_rates=[2, 4], decoder_dim=16, decoder_rates=[4, 2], n_codebooks=2, codebook_size=32
    )


@add("silero-vad/silero", {"x": Input(("batch", 576)), "state": Input((2, "batch", 128))}, batch=(2, 1, 3))
def silero() -> nn.Module:
    """The network itself, in TorchScript and with its weights; the module around it keeps the state."""
    from silero_vad import load_silero_vad

    return load_silero_vad()._model

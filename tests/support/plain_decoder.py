"""A decoder in float64 from the formulas, one loop per layer, as the reference of the real one."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from support.decoders import Given

from model_ports.decoder import Decoder


@dataclasses.dataclass(frozen=True)
class PlainDecoder:
    """The formulas over a decoder's weights and given inputs."""

    decoder: Decoder
    given: Given

    def get(self, param: Any, layer: int) -> np.ndarray:
        """A layer's slice of a stacked parameter."""
        return np.asarray(param[...], np.float64)[layer]

    def stack(self, layer: int) -> tuple[Any, int]:
        """The stack that a layer is in, and its index there."""
        first = self.decoder.cfg.dense_layers
        return (
            (self.decoder.dense, layer) if layer < first else (self.decoder.layers, layer - first)
        )

    def norm(self, x: np.ndarray, scale: np.ndarray, eps: float | None = None) -> np.ndarray:
        cfg = self.decoder.cfg
        rms = np.sqrt((x**2).mean(-1, keepdims=True) + (eps or cfg.norm_eps))
        return x / rms * (scale + cfg.norm_offset)

    def normed(self, x: np.ndarray, module: Any, layer: int) -> np.ndarray:
        """x after a layer's norm; as it is where there is none."""
        return x if module is None else self.norm(x, self.get(module.scale, layer))

    def act(self, x: np.ndarray) -> np.ndarray:
        if self.decoder.cfg.act == "silu":
            return x / (1 + np.exp(-x))
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    @cached_property
    def turn(self) -> np.ndarray:
        """Rotations as complex numbers, [B, T, 1, R/2]."""
        cfg = self.decoder.cfg
        dims = cfg.rope.dim or cfg.head_dim
        owner = np.repeat(np.arange(cfg.rope.axes), cfg.rope.sections or (dims // 2,))
        if cfg.rope.interleaved:
            owner = np.array([0, 1, 2, 0, 1, 2, 0, 0])  # sections 4, 2, 2
        angle = np.moveaxis(np.asarray(self.given.positions, np.float64), 0, -1)[..., owner]
        exponent = np.arange(dims // 2) / (dims // 2)
        return np.exp(1j * angle / cfg.rope.theta**exponent)[:, :, None]

    def rotate(self, x: np.ndarray) -> np.ndarray:
        order = np.arange(2 * self.turn.shape[-1]).reshape(2, -1)
        if self.decoder.cfg.rope.pairs == "adjacent":
            order = np.arange(order.size).reshape(-1, 2).T
        z = (x[..., order[0]] + 1j * x[..., order[1]]) * self.turn
        out = x.copy()
        out[..., order[0]], out[..., order[1]] = z.real, z.imag
        return out

    def seen(self, layer: int) -> np.ndarray:
        """Which keys each query sees, bool [B, T, T]; inputs are padded on the right."""
        cfg, valid = self.decoder.cfg, np.asarray(self.given.valid)
        t = valid.shape[1]
        gap = np.subtract.outer(np.arange(t), np.arange(t))
        window = cfg.windows[layer] if cfg.windows else 0
        seen = (gap >= 0) & (gap < (window or t)) & np.ones_like(valid)[:, :, None]
        if self.given.prefix is not None:
            prefix = np.asarray(self.given.prefix)
            seen |= prefix[:, :, None] & prefix[:, None, :]
        return (seen & valid[:, None, :]) | np.eye(t, dtype=bool)

    def grouped(self, y: np.ndarray, attn: Any, n: int) -> list[np.ndarray]:
        """Queries, keys and values of every query head, [B, T, N, H] each."""
        cfg, parts = self.decoder.cfg, []
        for part in (attn.q, attn.k, attn.v):
            out = np.einsum("btd,dnh->btnh", y, self.get(part.kernel, n))
            parts.append(out if part.bias is None else out + self.get(part.bias, n))
        q = self.rotate(self.normed(parts[0], attn.q_norm, n))
        k = self.rotate(self.normed(parts[1], attn.k_norm, n))
        return [q, *(np.repeat(one, cfg.heads // cfg.kv_heads, 2) for one in (k, parts[2]))]

    def latent(self, y: np.ndarray, attn: Any, n: int) -> list[np.ndarray]:
        """The same from a latent, whose norm has an epsilon of its own."""
        cfg, sizes = self.decoder.cfg, self.decoder.cfg.latent
        assert sizes is not None
        q = np.einsum("btd,dnh->btnh", y, self.get(attn.q.kernel, n))
        q = np.concatenate([q[..., : sizes.nope], self.rotate(q[..., sizes.nope :])], -1)
        small = y @ self.get(attn.kv_a.kernel, n)
        shared = self.rotate(small[:, :, None, sizes.rank :])
        small = self.norm(small[..., : sizes.rank], self.get(attn.kv_norm.scale, n), 1e-6)
        both = np.einsum("btc,cnh->btnh", small, self.get(attn.kv_b.kernel, n))
        k = np.concatenate([both[..., : sizes.nope], np.repeat(shared, cfg.heads, 2)], -1)
        return [q, k, both[..., sizes.nope :]]

    def attention(self, y: np.ndarray, n: int, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(output [B, T, D], weights [B, N, T, S]) of layer n; mask [B, N]."""
        cfg, (stack, at) = self.decoder.cfg, self.stack(n)
        make = self.grouped if cfg.latent is None else self.latent
        q, k, v = make(y, stack.attn, at)
        logits = np.einsum("btnh,bsnh->bnts", q, k) * (cfg.attn_scale or 1 / np.sqrt(cfg.head_dim))
        if cfg.attn_softcap is not None:
            logits = cfg.attn_softcap * np.tanh(logits / cfg.attn_softcap)
        logits = np.where(self.seen(n)[:, None], logits, -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        z = np.einsum("bnts,bsnh->btnh", weights, v) * mask[:, None, :, None]
        return np.einsum("btnh,nhd->btd", z, self.get(stack.attn.o.kernel, at)), weights

    def gated(self, y: np.ndarray, kernels: Sequence[np.ndarray]) -> np.ndarray:
        gate, up, down = kernels
        return (self.act(y @ gate) * (y @ up)) @ down

    def feed_forward(self, y: np.ndarray, mlp: Any, n: int) -> np.ndarray:
        """One MLP, or the chosen experts by their scores and the shared ones."""

        def kernels(part: Any) -> list[np.ndarray]:
            return [self.get(one.kernel, n) for one in (part.gate, part.up, part.down)]

        cfg = self.decoder.cfg.experts
        if cfg is None or not hasattr(mlp, "router"):
            return self.gated(y, kernels(mlp))
        scores = np.exp(y @ self.get(mlp.router.kernel, n))
        scores /= scores.sum(-1, keepdims=True)
        least = np.sort(scores, -1)[..., -cfg.active, None]
        out = self.gated(y, kernels(mlp.shared))
        for expert, own in enumerate(zip(*kernels(mlp.experts), strict=True)):
            weight = np.where(scores >= least, scores, 0)[..., expert, None]
            out = out + cfg.scale * weight * self.gated(y, own)
        return out

    def run(self, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        deepstack = self.given.deepstack
        x, maps = np.asarray(self.given.x, np.float64), []
        for n in range(self.decoder.cfg.layers):
            stack, at = self.stack(n)
            y = self.normed(x, stack.pre_attn_norm, at)
            out, weights = self.attention(y, n, mask[:, n])
            maps.append(weights)
            x = x + self.normed(out, stack.post_attn_norm, at)
            y = self.normed(x, stack.pre_mlp_norm, at)
            out = self.feed_forward(y, stack.mlp, at)
            x = x + self.normed(out, stack.post_mlp_norm, at)
            if deepstack is not None and n < len(deepstack):
                x = x + np.asarray(deepstack, np.float64)[n]
        scale = np.asarray(self.decoder.final_norm.scale[...], np.float64)
        return self.norm(x, scale), np.stack(maps)


def plain(decoder: Decoder, given: Given, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(hidden [B, T, D], attention [L, B, N, T, S]) under head masks [B, L, N]."""
    return PlainDecoder(decoder, given).run(mask)

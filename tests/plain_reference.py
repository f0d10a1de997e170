"""The integer model once more, in plain Python integers without bounds.

Written from the equations in docs/numerics.md, scalar by scalar, without NumPy and
without the profile's derived shifts: if an int64 ever overflowed in the reference, or a
float64 were not exact, this would disagree. Far too slow for anything but tests.
"""

import math

from sterna.model.quantized import QuantizedModel


def shift_round(value: int, shift: int) -> int:
    return (value + 2 ** (shift - 1)) // 2**shift if shift else value


def clamp(value: int, bits: int) -> int:
    return max(-(2 ** (bits - 1)), min(2 ** (bits - 1) - 1, value))


class PlainModel:
    def __init__(self, model: QuantizedModel) -> None:
        self.c, self.p = model.config, model.profile
        self.embedding = model.embedding.tolist()
        self.table = model.sigmoid.tolist()
        self.projections = {
            name: (p.weight.tolist(), p.bias.tolist(), p.k, p.shift)
            for name, p in model.projections.items()}

    def norm(self, y: list[int]) -> tuple[list[int], int]:
        k, t, frac = self.p.reciprocal_bits, self.p.root_frac, self.p.scale_frac
        reciprocal = 127 * 2**k // max(max(abs(v) for v in y), 1)
        q = [shift_round(v * reciprocal, k) for v in y]
        root = max(math.isqrt(sum(v * v for v in q) * 4**t), 127 * 2**t)
        return q, 127 * 2 ** (frac + t) // root

    def project(self, name: str, q: list[int], v: int) -> list[int]:
        weight, bias, k, shift = self.projections[name]
        scale = shift_round(v * k, self.p.scale_frac + self.p.mantissa_bits - self.p.scale_bits)
        return [shift_round(sum(w * a for w, a in zip(row, q, strict=True)) * scale, shift) + b
                for row, b in zip(weight, bias, strict=True)]

    def sigmoid(self, z: int) -> int:
        position = (z + 2 ** (self.p.z.bits - 1)) * self.p.sigmoid_segments
        i, rest = divmod(position, 2**self.p.z.bits)
        if rest == 0:
            return self.table[i]
        # The slope times the part of a segment, in units of a step of z.
        steps = 2**self.p.z.bits // self.p.sigmoid_segments
        part = rest // self.p.sigmoid_segments
        rise = (self.table[i + 1] - self.table[i]) * part
        return self.table[i] + (2 * rise + steps) // (2 * steps)

    def step(self, token: int, state: list[list[int]]) -> tuple[list[int], list[list[int]]]:
        p, ff = self.p, self.p.sigmoid_frac
        x = self.embedding[token]
        new_state = []
        for i in range(self.c.layers):
            at = f"layer{i}.mlgru"
            q, v = self.norm(x)
            zf, zc, zg = ([clamp(z, p.z.bits) for z in self.project(f"{at}.{part}", q, v)]
                          for part in "fcg")
            hidden, out = [], []
            for f, c, g, h in zip(zf, zc, zg, state[i], strict=True):
                keep = self.sigmoid(f)
                candidate = clamp(
                    shift_round(c * self.sigmoid(c), p.z.frac + ff - p.h.frac), p.h.bits)
                h = (keep * h + (2**ff - keep) * candidate + 2 ** (ff - 1)) // 2**ff
                hidden.append(h)
                out.append(clamp(
                    shift_round(self.sigmoid(g) * h, ff + p.h.frac - p.o.frac), p.o.bits))
            new_state.append(hidden)
            y = self.project(f"{at}.out", *self.norm(out))
            x = [clamp(a + b, p.x.bits) for a, b in zip(x, y, strict=True)]

            at = f"layer{i}.glu"
            q, v = self.norm(x)
            gate, up = ([clamp(z, p.z.bits) for z in self.project(f"{at}.{part}", q, v)]
                        for part in ("gate", "up"))
            product = [
                clamp(shift_round(shift_round(a * self.sigmoid(a), ff) * u,
                                  2 * p.z.frac - p.p.frac), p.p.bits)
                for a, u in zip(gate, up, strict=True)]
            y = self.project(f"{at}.down", *self.norm(product))
            x = [clamp(a + b, p.x.bits) for a, b in zip(x, y, strict=True)]
        return [clamp(z, p.logit.bits) for z in self.project("head", *self.norm(x))], new_state

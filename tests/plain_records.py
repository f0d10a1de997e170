"""The records once more, in plain Python integers without bounds.

Written from the table in docs/file-format.md, scalar by scalar, from the fields of a record as a
file holds them: what would overflow or be rounded in the reference is not here.
"""

import math

from plain_reference import clamp, shift_round

from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.records import records_to_json

Vector = list[int]


def rs(value: int, shift: int) -> int:
    return value << -shift if shift < 0 else shift_round(value, shift)


class PlainRecords:
    def __init__(self, model: QuantizedModel) -> None:
        self.records = records_to_json(model.records)
        self.model = model
        self.states: dict[str, Vector] = {}

    def step(self, token: int) -> Vector:
        """The logits after one more token."""
        values: dict[str, Vector] = {}
        for record in self.records:
            each = {"shift": 0, "epsilon": 0, "saturates": True, "keeps": True, **record}
            name = each["name"]
            values |= {name + part: value for part, value in getattr(self, each["kind"])(
                each, values, token).items()}
        return values[f"{name}.z"]

    def embedding(self, r: dict, v: dict, token: int) -> dict[str, Vector]:
        return {"": self.model.embedding[token].tolist()}

    def narrow(self, r: dict, v: dict, token: int) -> dict[str, Vector]:
        return {"": [_sat(rs(x, r["shift"]), r) for x in v[r["x"]]]}

    def scale(self, r: dict, v: dict, token: int) -> dict[str, Vector]:
        gains = self.model.vectors[r["name"]].tolist()
        return {"": [_sat(rs(x * g, r["shift"]), r) for x, g in zip(v[r["x"]], gains, strict=True)]}

    def energy(self, r: dict, v: dict, token: int) -> dict[str, Vector]:
        return {"": [rs(sum(x * x for x in v[r["x"]]) * r["mantissa"], r["shift"])]}

    def root(self, r: dict, v: dict, token: int) -> dict[str, Vector]:
        total = sum(x * x for x in v[r["x"]]) + r["epsilon"]
        total += v[r["extra"]][0] if r.get("extra") else 0
        return {".n": [max(math.isqrt(total * 4 ** r["root_frac"]), 1)]}

    def quantize(self, r: dict, v: dict, token: int) -> dict[str, Vector]:
        x, k = v[r["x"]], r["reciprocal_bits"]
        m = max(map(abs, x))
        reciprocal = 127 * 2**k // max(m, 1)
        ratio = m * 2 ** r["scale_shift"] // v[r["root"] + ".n"][0]
        return {".q": [rs(y * reciprocal, k) for y in x],
                ".v": [min(ratio, 2 ** r["scale_frac"] - 1)]}

    def norm(self, r: dict, v: dict, token: int) -> dict[str, Vector]:
        x, k, t = v[r["x"]], r["reciprocal_bits"], r["root_frac"]
        reciprocal = 127 * 2**k // max(*map(abs, x), 1)
        q = [rs(y * reciprocal, k) for y in x]
        root = max(math.isqrt(sum(y * y for y in q) * 4**t), 127 * 2**t)
        return {".q": q, ".v": [127 * 2 ** (r["scale_frac"] + t) // root]}

    def project(self, r: dict, v: dict, token: int) -> dict[str, Vector]:
        own, q = self.model.projections[r["name"]], v[r["norm"] + ".q"]
        a = rs(v[r["norm"] + ".v"][0] * own.k, r["combine_shift"])
        z = [rs(sum(w * x for w, x in zip(row, q, strict=True)) * a, own.shift) + bias
             for row, bias in zip(own.weight.tolist(), own.bias.tolist(), strict=True)]
        return {".z": [_sat(each, r) for each in z]}

    def sigmoid(self, r: dict, v: dict, token: int) -> dict[str, Vector]:
        table, size = self.model.sigmoid.tolist(), 2 ** r["step_bits"]
        table = table[::-1] if r.get("complement") else table
        found = []
        for x in v[r["x"]]:
            i, rest = divmod(x + 2 ** (r["z"]["bits"] - 1), size)
            rise = (table[i + 1] - table[i]) * rest if rest else 0
            found.append(table[i] + (2 * rise + size) // (2 * size))
        return {"": found}

    def recur(self, r: dict, v: dict, token: int) -> dict[str, Vector]:
        one, after = 2 ** r["frac"], []
        before = self.states.get(r["name"], [0] * r["width"])
        for h, u, c in zip(before, v[r["gate"]], v[r["candidate"]], strict=True):
            after.append(h + rs((one - u if r["keeps"] else u) * (c - h), r["frac"]))
        self.states[r["name"]] = after
        return {"": after}

    def multiply(self, r: dict, v: dict, token: int) -> dict[str, Vector]:
        return {"": [_sat(rs(x * y, r["shift"]), r)
                     for x, y in zip(v[r["x"]], v[r["y"]], strict=True)]}

    def add(self, r: dict, v: dict, token: int) -> dict[str, Vector]:
        return {"": [_sat(x + y, r) for x, y in zip(v[r["x"]], v[r["y"]], strict=True)]}


def _sat(value: int, r: dict) -> int:
    return clamp(value, r["output"]["bits"]) if r["saturates"] else value

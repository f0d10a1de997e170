// The integer arithmetic of the layers, as docs/numerics.md defines it.
//
// Compiled once for each instruction set: a kernel_*.cpp opens a namespace, defines
// `matmul`, and includes this file. Loops are written so that the compiler turns them into
// vector code. Bounds are in docs/native-ops.md.
#pragma once

// Tokens that are computed together; the weights are read once for all of them.
constexpr int64_t kTile = 16;

// In the type that it is given: narrowing in here made the loops around it 2 to 4% slower.
template <class Wide>
inline Wide saturate(Wide value, Wide low, Wide high) {
    value = value < low ? low : value;
    return value > high ? high : value;
}

inline int32_t format_min(int32_t bits) { return -(1 << (bits - 1)); }
inline int32_t format_max(int32_t bits) { return (1 << (bits - 1)) - 1; }
inline int64_t half_of(int32_t shift) { return (int64_t{1} << shift) >> 1; }

inline void norm_quant(const Profile& p, const int32_t* __restrict y, int64_t n, int64_t padded,
                       int8_t* __restrict acts, int32_t& sum, int32_t& scale) {
    int32_t m = 1;
    for (int64_t i = 0; i < n; ++i) {
        const int32_t magnitude = y[i] < 0 ? -y[i] : y[i];
        m = magnitude > m ? magnitude : m;
    }
    const int32_t k = p.reciprocal_bits;
    // |y * r| <= 127 << k, so it and its half fit in 32 bits while k <= 24.
    const int32_t r = static_cast<int32_t>((127u << k) / static_cast<uint32_t>(m));
    const int32_t half = 1 << (k - 1);
    int32_t total = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) {
        const int32_t q = (y[i] * r + half) >> k;
        acts[i] = static_cast<int8_t>(q);
        total += q;
        squares += q * q;           // 127 * 127 * 65,536 < 2^31
    }
    for (int64_t i = n; i < padded; ++i) acts[i] = 0;
    // At most 2^50: float64 and its root are exact there.
    const int64_t wide = int64_t{squares} << (2 * p.root_frac);
    int64_t root = static_cast<int64_t>(__builtin_sqrt(static_cast<double>(wide)));
    const int64_t least = int64_t{127} << p.root_frac;
    root = root < least ? least : root;
    sum = total;
    scale = static_cast<int32_t>((int64_t{127} << (p.scale_frac + p.root_frac)) / root);
}

inline int32_t combine(const Profile& p, int32_t scale, int32_t k) {
    const int32_t shift = p.combine_shift();
    return static_cast<int32_t>((int64_t{scale} * k + half_of(shift)) >> shift);
}

// out = sat(rs(acc * a, shift) + bias), with `add` on top where there is a residual.
template <bool kResidual, class Out>
inline void requantize(const int32_t* __restrict acc, int32_t a, int32_t shift,
                       const int32_t* __restrict bias, const int32_t* __restrict add,
                       int32_t bits, int64_t n, Out* __restrict out) {
    const int64_t half = half_of(shift), low = format_min(bits), high = format_max(bits);
    for (int64_t i = 0; i < n; ++i) {
        int64_t value = ((int64_t{acc[i]} * a + half) >> shift) + bias[i];
        if constexpr (kResidual) value += add[i];
        out[i] = static_cast<Out>(static_cast<int32_t>(saturate(value, low, high)));
    }
}

// Sigmoids of n pre-activations, in loops without a branch.
template <class Wide>
inline void sigmoids(const Sigmoid& sigmoid, int32_t z_min, const int32_t* __restrict z, int64_t n,
                     int32_t* __restrict out) {
    const int32_t step = sigmoid.step_bits, mask = (1 << step) - 1;
    const Wide half = static_cast<Wide>(half_of(step));
    if (!sigmoid.pairs.empty()) {
        const uint32_t* __restrict const pairs = sigmoid.pairs.data();
        for (int64_t i = 0; i < n; ++i) {
            const int32_t index = z[i] - z_min;
            const uint32_t pair = pairs[index >> step];
            const Wide rise = static_cast<Wide>(pair >> 16);
            out[i] = static_cast<int32_t>(pair & 0xffff)
                + static_cast<int32_t>((rise * (index & mask) + half) >> step);
        }
    } else {
        const int32_t* __restrict const low = sigmoid.low.data();
        const int32_t* __restrict const rise = sigmoid.rise.data();
        for (int64_t i = 0; i < n; ++i) {
            const int32_t index = z[i] - z_min, segment = index >> step;
            out[i] = low[segment]
                + static_cast<int32_t>((Wide{rise[segment]} * (index & mask) + half) >> step);
        }
    }
}

// Wide is int32_t where every product fits (Profile::narrow), else int64_t. `gate` [3 * d] is
// room for the sigmoids.
template <class Wide>
inline void mlgru_cell(const Profile& p, const Gates& gates, int64_t d,
                       const int32_t* __restrict z, int32_t* __restrict gate,
                       int32_t* __restrict h, int32_t* __restrict o) {
    const int32_t z_min = format_min(p.z_bits);
    const int32_t ff = p.sigmoid_frac, c_shift = p.candidate_shift(), o_shift = p.output_shift();
    const Wide ff_half = static_cast<Wide>(half_of(ff)), one = static_cast<Wide>(1) << ff;
    const Wide c_half = static_cast<Wide>(half_of(c_shift));
    const Wide o_half = static_cast<Wide>(half_of(o_shift));
    const Wide h_low = format_min(p.h_bits), h_high = format_max(p.h_bits);
    const Wide o_low = format_min(p.o_bits), o_high = format_max(p.o_bits);
    sigmoids<Wide>(gates.sigmoid, z_min, z, 3 * d, gate);
    const int32_t* const zc = z + d;
    int32_t* const c = gate + d;
    if (gates.candidate.empty()) {
        for (int64_t i = 0; i < d; ++i) {
            c[i] = static_cast<int32_t>(
                saturate<Wide>((Wide{zc[i]} * c[i] + c_half) >> c_shift, h_low, h_high));
        }
    } else {
        const int32_t* const candidate = gates.candidate.data();
        for (int64_t i = 0; i < d; ++i) c[i] = candidate[zc[i] - z_min];
    }
    const int32_t* const f = gate;
    const int32_t* const g = gate + 2 * d;
    for (int64_t i = 0; i < d; ++i) {
        const Wide next = (Wide{f[i]} * h[i] + (one - f[i]) * c[i] + ff_half) >> ff;
        h[i] = static_cast<int32_t>(next);
        o[i] = static_cast<int32_t>(
            saturate<Wide>((Wide{g[i]} * next + o_half) >> o_shift, o_low, o_high));
    }
}

template <class Wide>
inline void glu_product(const Profile& p, const Silu& silu, int64_t dff,
                        const int32_t* __restrict z, int32_t* __restrict act,
                        int32_t* __restrict out) {
    const int32_t z_min = format_min(p.z_bits), ff = p.sigmoid_frac, shift = p.product_shift();
    const Wide ff_half = static_cast<Wide>(half_of(ff)), half = static_cast<Wide>(half_of(shift));
    const Wide p_low = format_min(p.p_bits), p_high = format_max(p.p_bits);
    const int32_t* const up = z + dff;
    if (silu.silu.empty()) {
        sigmoids<Wide>(silu.sigmoid, z_min, z, dff, act);
        for (int64_t i = 0; i < dff; ++i) {
            act[i] = static_cast<int32_t>((Wide{z[i]} * act[i] + ff_half) >> ff);
        }
    } else {
        const int32_t* const table = silu.silu.data();
        for (int64_t i = 0; i < dff; ++i) act[i] = table[z[i] - z_min];
    }
    for (int64_t i = 0; i < dff; ++i) {
        out[i] = static_cast<int32_t>(
            saturate<Wide>((Wide{act[i]} * up[i] + half) >> shift, p_low, p_high));
    }
}

inline void to_integers(const double* __restrict from, int64_t n, int32_t* __restrict to) {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<int32_t>(from[i]);
}

// Buffers of one tile, kept by each thread from call to call.
struct Scratch {
    Bytes bytes;
    size_t used = 0;

    void start(size_t size) {
        if (bytes.size() < size) bytes = Bytes(size);
        used = 0;
    }
    template <class T>
    T* take(int64_t count) {
        T* const at = reinterpret_cast<T*>(bytes.data() + used);
        used += static_cast<size_t>(round_up(count * static_cast<int64_t>(sizeof(T)), 64));
        return at;
    }
};

inline Scratch& scratch() {
    static thread_local Scratch buffers;
    return buffers;
}

// Bytes of a vector of each token of a tile, whatever its type (at most 4 bytes), with room
// for the padding.
inline size_t room(int64_t width) {
    return static_cast<size_t>(kTile * (width + 32) * 4 + 128);
}

// Reads tokens of x, quantizes them and multiplies with the matrix of a projection.
struct Tile {
    int32_t* x;         // [tokens, columns]
    int8_t* acts;
    int32_t *sums, *scales, *acc;
};

inline Tile take_tile(Scratch& buffers, const Packed& weight) {
    Tile tile;
    tile.x = buffers.take<int32_t>(kTile * weight.columns);
    tile.acts = buffers.take<int8_t>(kTile * weight.padded_columns());
    tile.sums = buffers.take<int32_t>(kTile);
    tile.scales = buffers.take<int32_t>(kTile);
    tile.acc = buffers.take<int32_t>(kTile * weight.padded_rows());
    return tile;
}

inline size_t tile_room(const Packed& weight) {
    return 2 * room(weight.columns) + room(weight.rows) + 2 * room(1);
}

// The first weights of a matrix travel while its vector is still being quantized.
inline void fetch_start(const Packed& weight) {
    constexpr int64_t kBytes = 4096;
    const int64_t size = static_cast<int64_t>(weight.bytes.size());
    for (int64_t at = 0; at < size && at < kBytes; at += 64) {
        __builtin_prefetch(weight.bytes.data() + at);
    }
}

inline void project(const Profile& p, const Packed& weight, const Tile& tile, int64_t tokens) {
    const int64_t n = weight.columns, padded = weight.padded_columns();
    fetch_start(weight);
    for (int64_t t = 0; t < tokens; ++t) {
        norm_quant(p, tile.x + t * n, n, padded, tile.acts + t * padded, tile.sums[t],
                   tile.scales[t]);
    }
    matmul(weight, tile.acts, tile.sums, tokens, tile.acc);
}

// One token of what `project` left, all parts of a merged projection, each with its own scale.
// `add` is null without a residual.
template <bool kResidual, class Out>
inline void requantize_token(const Profile& p, const Projection& projection, const Tile& tile,
                             int64_t t, const int32_t* add, int32_t bits, Out* out) {
    const int64_t each = projection.weight.rows / projection.parts;
    const int32_t* const acc = tile.acc + t * projection.weight.padded_rows();
    for (int64_t part = 0; part < projection.parts; ++part) {
        const int64_t at = part * each;
        requantize<kResidual>(
            acc + at, combine(p, tile.scales[t], projection.k[part]), projection.shift[part],
            projection.bias.data() + at, add, bits, each, out + at);
    }
}

template <class Wide>
inline void run_mlgru(const Mlgru& layer, const double* x, const double* h, int64_t length,
                      int64_t batch, double* y, double* h_next) {
    const Profile& p = layer.profile;
    const int64_t d = layer.out.weight.columns, rows = length * batch;
    Scratch& buffers = scratch();
    buffers.start(tile_room(layer.fcg.weight) + tile_room(layer.out.weight) + room(6 * d)
                  + static_cast<size_t>(batch * d * 4 + 64));
    const Tile in = take_tile(buffers, layer.fcg.weight);
    const Tile out = take_tile(buffers, layer.out.weight);
    int32_t* const z = buffers.take<int32_t>(3 * d);
    int32_t* const gate = buffers.take<int32_t>(3 * d);
    int32_t* const state = buffers.take<int32_t>(batch * d);
    to_integers(h, batch * d, state);
    for (int64_t first = 0; first < rows; first += kTile) {
        const int64_t tokens = rows - first < kTile ? rows - first : kTile;
        to_integers(x + first * d, tokens * d, in.x);
        project(p, layer.fcg.weight, in, tokens);
        for (int64_t t = 0; t < tokens; ++t) {
            const int64_t sequence = (first + t) % batch;
            requantize_token<false>(p, layer.fcg, in, t, nullptr, p.z_bits, z);
            mlgru_cell<Wide>(p, layer.gates, d, z, gate, state + sequence * d, out.x + t * d);
        }
        project(p, layer.out.weight, out, tokens);
        for (int64_t t = 0; t < tokens; ++t) {
            requantize_token<true>(
                p, layer.out, out, t, in.x + t * d, p.x_bits, y + (first + t) * d);
        }
    }
    for (int64_t i = 0; i < batch * d; ++i) h_next[i] = state[i];
}

template <class Wide>
inline void run_glu(const Glu& layer, const double* x, int64_t rows, double* y) {
    const Profile& p = layer.profile;
    const int64_t d = layer.gate_up.weight.columns, dff = layer.down.weight.columns;
    Scratch& buffers = scratch();
    buffers.start(tile_room(layer.gate_up.weight) + tile_room(layer.down.weight)
                  + room(3 * dff));
    const Tile in = take_tile(buffers, layer.gate_up.weight);
    const Tile out = take_tile(buffers, layer.down.weight);
    int32_t* const z = buffers.take<int32_t>(2 * dff);
    int32_t* const act = buffers.take<int32_t>(dff);
    for (int64_t first = 0; first < rows; first += kTile) {
        const int64_t tokens = rows - first < kTile ? rows - first : kTile;
        to_integers(x + first * d, tokens * d, in.x);
        project(p, layer.gate_up.weight, in, tokens);
        for (int64_t t = 0; t < tokens; ++t) {
            requantize_token<false>(p, layer.gate_up, in, t, nullptr, p.z_bits, z);
            glu_product<Wide>(p, layer.silu, dff, z, act, out.x + t * dff);
        }
        project(p, layer.down.weight, out, tokens);
        for (int64_t t = 0; t < tokens; ++t) {
            requantize_token<true>(
                p, layer.down, out, t, in.x + t * d, p.x_bits, y + (first + t) * d);
        }
    }
}

void mlgru(const Mlgru& layer, const double* x, const double* h, int64_t length, int64_t batch,
           double* y, double* h_next) {
    if (layer.profile.narrow()) {
        run_mlgru<int32_t>(layer, x, h, length, batch, y, h_next);
    } else {
        run_mlgru<int64_t>(layer, x, h, length, batch, y, h_next);
    }
}

void glu(const Glu& layer, const double* x, int64_t rows, double* y) {
    if (layer.profile.narrow()) {
        run_glu<int32_t>(layer, x, rows, y);
    } else {
        run_glu<int64_t>(layer, x, rows, y);
    }
}

void head(const Head& layer, const double* x, int64_t rows, double* logits) {
    const Profile& p = layer.profile;
    const Packed& weight = layer.head.weight;
    Scratch& buffers = scratch();
    buffers.start(tile_room(weight));
    const Tile tile = take_tile(buffers, weight);
    for (int64_t first = 0; first < rows; first += kTile) {
        const int64_t tokens = rows - first < kTile ? rows - first : kTile;
        to_integers(x + first * weight.columns, tokens * weight.columns, tile.x);
        project(p, weight, tile, tokens);
        for (int64_t t = 0; t < tokens; ++t) {
            requantize_token<false>(p, layer.head, tile, t, nullptr, p.logit_bits,
                                    logits + (first + t) * weight.rows);
        }
    }
}

#include "kernels.hpp"

#include "../isa/accumulate.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

// Rows are read once, page after page, and hardware prefetchers stop at page boundaries: so many bytes ahead of a
// read, memory is asked for what lies there. At 4096 tokens of fp32 that made the loops 1.1 to 1.3 times as
// fast.
constexpr std::int64_t kAhead = 8192;

// Up to which of so many tokens there is something ahead.
template <class T>
inline std::int64_t ahead_until(std::int64_t tokens, std::int64_t dim) {
    return tokens - kAhead / (static_cast<std::int64_t>(sizeof(T)) * dim);
}

template <class T>
inline void prefetch(const T* x, std::int64_t numel) {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    for (std::int64_t i = 0; i < numel; i += kLine) {
        __builtin_prefetch(reinterpret_cast<const char*>(x + i) + kAhead);
    }
}

constexpr float kMinusInfinity = -__builtin_huge_valf();

template <class T>
void widen(const void* x, std::int64_t dim, float* out) {
    for (std::int64_t i = 0; i < dim; i += kLanes) Isa::store(out + i, load_until(static_cast<const T*>(x), i, dim));
}

// Products of a token with `count` queries. `vectors` of its elements are whole; 0: known at run time only.
template <int count, int vectors, class T>
inline void multiply_token(const float* queries, const T* key, std::int64_t dim, float* scores, std::int64_t stride) {
    const std::int64_t padded = divided_up(dim, kLanes) * kLanes;
    const std::int64_t whole = vectors > 0 ? vectors * kLanes : dim / kLanes * kLanes;
    Isa::Vec sum[count];
    for (auto& each : sum) each = Isa::zero();
    for (std::int64_t i = 0; i < whole; i += kLanes) {
        const Isa::Vec own = Isa::load(key + i);
        for (int j = 0; j < count; ++j) {
            sum[j] = Isa::add(sum[j], Isa::multiply(own, Isa::load(queries + j * padded + i)));
        }
    }
    if (whole < dim) {
        const Isa::Vec own = load_until(key, whole, dim);
        for (int j = 0; j < count; ++j) {
            sum[j] = Isa::add(sum[j], Isa::multiply(own, Isa::load(queries + j * padded + whole)));
        }
    }
    for (int j = 0; j < count; ++j) scores[j * stride] = Isa::sum_of_lanes(sum[j]);
}

template <int count, class T>
void multiply_some(const float* queries, const T* keys, std::int64_t dim, std::int64_t row_tokens, Place tokens,
                   float* scores, std::int64_t stride) {
    const std::int64_t until = ahead_until<T>(row_tokens, dim);
    const auto all = [&](auto token) {
        for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
            if (t < until) prefetch(keys + t * dim, dim);
            token(keys + t * dim, scores + t);
        }
    };
    if (dim == 4 * kLanes) {
        all([&](const T* key, float* to) { multiply_token<count, 4>(queries, key, dim, to, stride); });
    } else if (dim == 8 * kLanes) {
        all([&](const T* key, float* to) { multiply_token<count, 8>(queries, key, dim, to, stride); });
    } else {
        all([&](const T* key, float* to) { multiply_token<count, 0>(queries, key, dim, to, stride); });
    }
}

template <class T>
void multiply(const float* queries, std::int64_t count, const void* keys, std::int64_t dim, std::int64_t row_tokens,
              Place tokens, float* scores, std::int64_t stride) {
    if (dim == 0) {
        for (std::int64_t j = 0; j < count; ++j) {
            for (std::int64_t t = tokens.begin; t < tokens.end; ++t) scores[j * stride + t] = 0.0f;
        }
        return;
    }
    const T* k = static_cast<const T*>(keys);
    const std::int64_t padded = divided_up(dim, kLanes) * kLanes;
    std::int64_t j = 0;
    for (; j + 4 <= count; j += 4)
        multiply_some<4>(queries + j * padded, k, dim, row_tokens, tokens, scores + j * stride, stride);
    for (; j + 2 <= count; j += 2)
        multiply_some<2>(queries + j * padded, k, dim, row_tokens, tokens, scores + j * stride, stride);
    for (; j < count; ++j)
        multiply_some<1>(queries + j * padded, k, dim, row_tokens, tokens, scores + j * stride, stride);
}

// e^x for x <= 0, within two units of the last place where that is a normal number, else 0.
inline Isa::Vec exponential(Isa::Vec x) {
    // x = n ln 2 + r: n times the first part of ln 2 is exact. e^r = 1 + r + r^2 p(r), p fitted to the least relative
    // error for |r| <= ln 2 / 2.
    const Isa::Words n = Isa::to_nearest(Isa::multiply(x, Isa::all(0x1.715476p+0f)));
    const Isa::Vec whole = Isa::to_floats(n);
    Isa::Vec r = Isa::subtract(x, Isa::multiply(whole, Isa::all(0x1.62e4p-1f)));
    r = Isa::subtract(r, Isa::multiply(whole, Isa::all(0x1.7f7d1cp-20f)));
    Isa::Vec p = Isa::all(0x1.6a23cep-10f);
    constexpr float kRest[] = {0x1.123a2p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f};
    for (const float next : kRest) p = Isa::add(Isa::multiply(p, r), Isa::all(next));
    p = Isa::add(Isa::add(Isa::multiply(Isa::multiply(r, r), p), r), Isa::all(1.0f));
    const Isa::Vec power = Isa::as_floats(Isa::shift_left<23>(Isa::sum(n, Isa::all_words(127))));
    const std::uint32_t tiny = Isa::below_zero(Isa::subtract(x, Isa::all(-87.0f)));
    return Isa::without(Isa::multiply(p, power), tiny);
}

// Which of sixteen tokens from the t-th on are seen.
inline std::uint32_t seen_of(const std::uint8_t* seen, std::int64_t t, std::int64_t tokens) {
    if (seen == nullptr) return valid(t, tokens);
    std::uint8_t some[kLanes] = {};
    if (t + kLanes > tokens) {
        for (std::int64_t i = t; i < tokens; ++i) some[i - t] = seen[i];
    }
    return Isa::at_least(Isa::to_floats(Isa::load_bytes(t + kLanes > tokens ? some : seen + t)), 1);
}

// Scales the scores, those of tokens that are not seen become -infinity; returns the largest.
inline float scale_scores(float* scores, std::int64_t tokens, float scaling, const std::uint8_t* seen) {
    const Isa::Vec hidden = Isa::all(kMinusInfinity), factor = Isa::all(scaling);
    Isa::Vec most = hidden;
    for (std::int64_t t = 0; t < tokens; t += kLanes) {
        const Isa::Vec scaled = Isa::multiply(Isa::load(scores + t), factor);
        const Isa::Vec score = Isa::choose(seen_of(seen, t, tokens), hidden, scaled);
        Isa::store(scores + t, score);
        most = Isa::larger(most, score);
    }
    float lanes[kLanes], largest = kMinusInfinity;
    Isa::store(lanes, most);
    for (const float lane : lanes) largest = lane > largest ? lane : largest;
    return largest;
}

float exponentiate(float* scores, std::int64_t tokens, float scaling, const std::uint8_t* seen) {
    const float largest = scale_scores(scores, tokens, scaling, seen);
    if (largest == kMinusInfinity) {
        bool nan = false;  // which no comparison finds
        for (std::int64_t t = 0; t < tokens; ++t) nan |= scores[t] != scores[t];
        for (std::int64_t t = 0; t < tokens; ++t) scores[t] = 0.0f;
        return nan ? __builtin_nanf("") : 0.0f;
    }
    const Isa::Vec subtrahend = Isa::all(largest);
    Isa::Vec sum = Isa::zero();
    for (std::int64_t t = 0; t < tokens; t += kLanes) {
        const Isa::Vec weight = exponential(Isa::subtract(Isa::load(scores + t), subtrahend));
        Isa::store(scores + t, weight);
        sum = Isa::add(sum, weight);
    }
    return 1.0f / Isa::sum_of_lanes(sum);
}

// Sums over so many tokens are added up on their own, so that few of them are rounded after each other.
constexpr std::int64_t kTokensAtOnce = 256;
// Of a row of values so many columns are summed at a time, for so many lists of weights.
constexpr std::int64_t kColumns = 128;
constexpr int kWeights = 4;
// Sums in registers, of which a vector takes one, two or four.
constexpr int kSums = Isa::kLevel == Level::kAvx512 ? 16 : Isa::kLevel == Level::kAvx2 ? 4 : 2;

struct Sums {
    const float* weights[kWeights];
    std::int64_t until;  // as of ahead_until()
    alignas(64) float totals[kWeights][kColumns];
};

// Adds the tokens of a place to the totals from `column` on, of `vectors` vectors; of the last `width` columns are
// there.
template <int count, int vectors, bool partial, class T>
inline void add_tokens(const T* values, std::int64_t dim, Place tokens, Sums& sums, int first, std::int64_t column,
                       std::int64_t width) {
    Isa::Vec sum[count][vectors];
    for (auto& row : sum) {
        for (auto& each : row) each = Isa::zero();
    }
    for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
        const T* value = values + t * dim;
        if (t < sums.until) prefetch(value, vectors * kLanes);
        Isa::Vec own[vectors];
        for (int v = 0; v < vectors; ++v) {
            own[v] = partial ? load_until(value, 0, width) : Isa::load(value + v * kLanes);
        }
        for (int j = 0; j < count; ++j) {
            const Isa::Vec weight = Isa::all(sums.weights[first + j][t]);
            for (int v = 0; v < vectors; ++v) sum[j][v] = Isa::add(sum[j][v], Isa::multiply(own[v], weight));
        }
    }
    for (int j = 0; j < count; ++j) {
        for (int v = 0; v < vectors; ++v) {
            float* total = sums.totals[first + j] + column + v * kLanes;
            Isa::store(total, Isa::add(Isa::load(total), sum[j][v]));
        }
    }
}

// The same of columns 0..width-1, in pieces of `vectors` vectors and less.
template <int count, int vectors, class T>
inline void add_columns(const T* values, std::int64_t dim, Place tokens, Sums& sums, int first, std::int64_t column,
                        std::int64_t width) {
    if constexpr (vectors * count > kSums && vectors > 1) {
        add_columns<count, vectors / 2>(values, dim, tokens, sums, first, column, width);
    } else {
        for (; column + vectors * kLanes <= width; column += vectors * kLanes) {
            add_tokens<count, vectors, false>(values + column, dim, tokens, sums, first, column, 0);
        }
        if constexpr (vectors > 1) {
            add_columns<count, vectors / 2>(values, dim, tokens, sums, first, column, width);
        } else if (column < width) {
            add_tokens<count, 1, true>(values + column, dim, tokens, sums, first, column, width - column);
        }
    }
}

// Sums of `count` lists of weights for the columns 0..width-1.
template <class T>
void sum_columns(const T* values, std::int64_t dim, std::int64_t tokens, Sums& sums, int count, std::int64_t width) {
    for (auto& total : sums.totals) {
        for (std::int64_t i = 0; i < kColumns; i += kLanes) Isa::store(total + i, Isa::zero());
    }
    constexpr int kVectors = kColumns / kLanes;
    for (std::int64_t t = 0; t < tokens; t += kTokensAtOnce) {
        const Place place{t, t + kTokensAtOnce < tokens ? t + kTokensAtOnce : tokens};
        if (count == 4) {
            add_columns<4, kVectors>(values, dim, place, sums, 0, 0, width);
        } else {
            if (count >= 2) add_columns<2, kVectors>(values, dim, place, sums, 0, 0, width);
            if (count % 2 == 1) add_columns<1, kVectors>(values, dim, place, sums, count - 1, 0, width);
        }
    }
}

template <class T>
void weigh(const void* data, std::int64_t dim, std::int64_t tokens, const Weighted* list, std::int64_t count) {
    const T* values = static_cast<const T*>(data);
    Sums sums;
    sums.until = dim == 0 ? 0 : ahead_until<T>(tokens, dim);
    for (std::int64_t begin = 0, end = 0; begin < count; begin = end) {
        int some = 0;
        for (; end < count; ++end) {  // neighbours with the same weights have the same sums
            if (some > 0 && list[end].weights == sums.weights[some - 1]) continue;
            if (some == kWeights) break;
            sums.weights[some++] = list[end].weights;
        }
        for (std::int64_t column = 0; column < dim; column += kColumns) {
            const std::int64_t width = column + kColumns < dim ? kColumns : dim - column;
            sum_columns(values + column, dim, tokens, sums, some, width);
            int place = 0;
            for (std::int64_t i = begin; i < end; ++i) {
                if (list[i].weights != sums.weights[place]) ++place;
                T* out = static_cast<T*>(list[i].out) + column;
                for (std::int64_t c = 0; c < width; ++c) {
                    out[c] = from_float<T>(sums.totals[place][c] * list[i].factor);
                }
            }
        }
    }
}

}  // namespace

extern const AttentionKernels attention_kernels = {
    {widen<float>, widen<Half>, widen<BFloat16>},
    {multiply<float>, multiply<Half>, multiply<BFloat16>},
    exponentiate,
    {weigh<float>, weigh<Half>, weigh<BFloat16>},
};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL

#include "kernels.hpp"

#include "../isa/accumulate.hpp"
#include "hvd_compress/sign.hpp"
#include "philox.hpp"

namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL {
namespace {

template <class G, class R>
double correct(const void* grad, const void* residual, void* out, Place place, bool past_caches, Norm kind) {
    double lanes[kSumLanes] = {};
    std::uint32_t largest = 0;
    accumulate(static_cast<const G*>(grad), static_cast<const R*>(residual), static_cast<R*>(out), place, past_caches,
               [&](std::int64_t i, Isa::Vec v) {
                   if (kind == Norm::kL2) {
                       Isa::add_squares(v, lanes + i % kSumLanes);
                   } else {
                       const std::uint32_t own = Isa::largest_key(v);
                       largest = own > largest ? own : largest;
                   }
                   return v;
               });
    if (kind == Norm::kMax) return static_cast<double>(from_bits(largest));
    return add_lanes(lanes, kSumLanes);
}

// The random words for the elements of the group that starts with element i.
inline void draw(std::int64_t i, const RandomKey& key, Isa::Words words[4]) {
    // A multiple of 16, so that the group's other blocks have the same upper word.
    const auto first = static_cast<std::uint64_t>(i / kGroup) * kLanes;
    words[0] = Isa::count_up(static_cast<std::uint32_t>(first));
    words[1] = Isa::all_words(static_cast<std::uint32_t>(first >> 32));
    words[2] = Isa::all_words(key.step);
    words[3] = Isa::all_words(key.bucket);
    philox(words, static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32));
}

// The numbers of a group, a byte each, to `bits` of each, one behind the other.
inline void pack(const std::uint8_t* q, int bits, std::uint8_t* packed) {
    if (bits == 8) {
        for (int j = 0; j < kGroup; ++j) packed[j] = q[j];
    } else if (bits == 4) {
        for (int j = 0; j < kGroup / 2; ++j) packed[j] = static_cast<std::uint8_t>((q[2 * j] & 15) | q[2 * j + 1] << 4);
    } else {
        for (int j = 0; j < kGroup / 4; ++j) {
            packed[j] = static_cast<std::uint8_t>((q[4 * j] & 3) | (q[4 * j + 1] & 3) << 2 | (q[4 * j + 2] & 3) << 4 |
                                                  q[4 * j + 3] << 6);
        }
    }
}

template <int bits>
inline void unpack(const std::uint8_t* packed, std::int32_t* q) {
    constexpr int kPerByte = 8 / bits;
    for (int j = 0; j < kGroup / kPerByte; ++j) {
        for (int part = 0; part < kPerByte; ++part) {
            const std::uint32_t raised = static_cast<std::uint32_t>(packed[j]) << (32 - bits - part * bits);
            q[kPerByte * j + part] = static_cast<std::int32_t>(raised) >> (32 - bits);
        }
    }
}

// The group of x that starts with element i, to one byte for each number.
template <class T>
inline void quantize_group(T* x, std::int64_t i, const Quantizer& quantizer, std::uint8_t* q) {
    Isa::Words words[4];
    draw(i, quantizer.key, words);
    const Isa::Words most = Isa::all_words(static_cast<std::uint32_t>(quantize_levels(quantizer.bits)) << 16);
    const auto scale = Isa::all(quantizer.scale), unit = Isa::all(quantizer.unit);
    for (int part = 0; part < 8; ++part) {
        const Isa::Words random = part < 4 ? Isa::lower_halves(words[part]) : Isa::upper_halves(words[part - 4]);
        const auto v = Isa::load(x + part * kLanes);
        const Isa::Words units = Isa::smaller(Isa::truncated(Isa::multiply(Isa::absolute(v), scale)), most);
        const Isa::Words whole = Isa::negated(Isa::upper_halves(Isa::sum(units, random)), Isa::below_zero(v));
        Isa::store(x + part * kLanes, Isa::subtract(v, Isa::multiply(Isa::to_floats(whole), unit)));
        Isa::store_bytes(q + part * kLanes, whole);
    }
}

template <class T>
void quantize(void* data, Place place, const Quantizer& quantizer, std::uint8_t* packed) {
    T* x = static_cast<T*>(data);
    std::uint8_t q[kGroup], some_packed[kGroup];
    std::int64_t i = place.begin;
    for (; i + kGroup <= place.end; i += kGroup) {
        std::uint8_t* own = packed + quantized_bytes(i, quantizer.bits);
        if (quantizer.bits == 8) {
            quantize_group(x + i, i, quantizer, own);
        } else {
            quantize_group(x + i, i, quantizer, q);
            pack(q, quantizer.bits, own);
        }
    }
    if (i == place.end) return;
    T some[kGroup] = {};
    for (std::int64_t j = i; j < place.end; ++j) some[j - i] = x[j];
    quantize_group(some, i, quantizer, q);
    for (std::int64_t j = i; j < place.end; ++j) x[j] = some[j - i];
    for (std::int64_t j = place.end - i; j < kGroup; ++j) q[j] = 0;
    pack(q, quantizer.bits, some_packed);
    std::uint8_t* own = packed + quantized_bytes(i, quantizer.bits);
    for (std::int64_t j = 0; j < quantized_bytes(place.end - i, quantizer.bits); ++j) own[j] = some_packed[j];
}

template <class T, int bits>
void add_groups(const std::uint8_t* packed, T* out, Place place, float unit, float weight) {
    for (std::int64_t i = place.begin; i < place.end; i += kGroup) {
        const std::int64_t count = place.end - i < kGroup ? place.end - i : kGroup;
        const std::uint8_t* own = packed + quantized_bytes(i, bits);
        std::uint8_t some[kGroup] = {};
        if (count < kGroup) {
            for (std::int64_t j = 0; j < quantized_bytes(count, bits); ++j) some[j] = own[j];
            own = some;
        }
        std::int32_t q[kGroup];
        unpack<bits>(own, q);
        const auto step = [&](std::int64_t j) { return weight * (static_cast<float>(q[j]) * unit); };
        if (count == kGroup) {
            for (std::int64_t j = 0; j < kGroup; ++j) out[i + j] = from_float<T>(to_float(out[i + j]) + step(j));
        } else {
            for (std::int64_t j = 0; j < count; ++j) out[i + j] = from_float<T>(to_float(out[i + j]) + step(j));
        }
    }
}

template <class T>
void add(const std::uint8_t* packed, void* data, Place place, int bits, float unit, float weight) {
    T* out = static_cast<T*>(data);
    if (bits == 8) return add_groups<T, 8>(packed, out, place, unit, weight);
    if (bits == 4) return add_groups<T, 4>(packed, out, place, unit, weight);
    add_groups<T, 2>(packed, out, place, unit, weight);
}

}  // namespace

extern const QuantizeKernels quantize_kernels = {
    {
        {correct<float, float>, correct<float, float>},
        {correct<Half, float>, correct<Half, Half>},
        {correct<BFloat16, float>, correct<BFloat16, BFloat16>},
    },
    {quantize<float>, quantize<Half>, quantize<BFloat16>},
    {add<float>, add<Half>, add<BFloat16>},
};

}  // namespace hvd_compress::cpu::HVD_COMPRESS_LEVEL

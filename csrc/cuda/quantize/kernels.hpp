// The steps of stochastic quantisation: correct and sum, the norm, round and pack; and adding what others sent.
#pragma once

#include <cmath>

#include "../sign/kernels.hpp"
#include "hvd_compress/quantize.hpp"

namespace hvd_compress::cuda {

// What the norm comes to: |v| is |v| * scale in units of 2^-16 levels, and q stands for q * unit.
struct Quantizer {
    float scale, unit;
    bool usable;
};

// Writes corrected; sums[block] becomes the sum of its squares (kL2) or its largest magnitude (kMax).
template <class Source>
struct CorrectForNorm {
    static constexpr int kThreads = kSignThreads;
    struct Shared {
        float values[kSumBlock];
        double lanes[kSumLanes];
    };
    Source source;
    Norm kind;
    double* sums;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        block.each([&](int t) {
            float v[kSignRounds][kWide];
            source.read(SignTile{block.index}, t, v);
            source.write(SignTile{block.index}, t, v);
            for_each_value(v, [&](float x, int round, int j) { shared.values[SignTile::place(round, t) + j] = x; });
        });
        block.sync();
        block.each([&](int t) {
            if (t >= kSumLanes) return;
            double sum = 0.0;
            std::uint32_t largest = 0;
            for (int i = t; i < kSumBlock; i += kSumLanes) {
                const auto wide = static_cast<double>(shared.values[i]);
                const std::uint32_t magnitude = to_bits(shared.values[i]) & 0x7fffffffu;
                sum += wide * wide;
                largest = magnitude > largest ? magnitude : largest;
            }
            shared.lanes[t] = kind == Norm::kL2 ? sum : static_cast<double>(from_bits(largest));
        });
        if (kind == Norm::kL2) {
            add_lanes(block, shared.lanes, kSumLanes);
        } else {
            largest_lane(block, shared.lanes, kSumLanes);
        }
        block.each([&](int t) {
            if (t == 0) sums[block.index] = shared.lanes[0];
        });
    }

    // The largest of the lanes, none of them below zero, comes to lanes[0], for thread 0; NaN is larger than all.
    template <class B>
    static HVD_COMPRESS_TILE void largest_lane(const B& block, double* lanes, int count) {
        for (int width = count / 2; width > 0; width /= 2) {
            block.sync();
            block.each([&](int t) {
                if (t < width && !(lanes[t + width] <= lanes[t]) && lanes[t] == lanes[t]) lanes[t] = lanes[t + width];
            });
        }
    }
};

struct FindNorm {
    static constexpr int kThreads = kBlockLanes;
    struct Shared {
        double lanes[kBlockLanes];
    };
    const double* sums;
    std::int64_t n;
    Norm kind;
    float levels;
    float* norm;
    Quantizer* quantizer;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        block.each([&](int t) {
            double sum = 0.0;
            for (std::int64_t i = t; i * kSumBlock < n; i += kBlockLanes) {
                if (kind == Norm::kL2) {
                    sum += sums[i];
                } else if (!(sums[i] <= sum) && sum == sum) {
                    sum = sums[i];
                }
            }
            shared.lanes[t] = sum;
        });
        if (kind == Norm::kL2) {
            add_lanes(block, shared.lanes, kBlockLanes);
        } else {
            CorrectForNorm<Plain<float>>::largest_lane(block, shared.lanes, kBlockLanes);
        }
        block.each([&](int t) {
            if (t != 0) return;
            const float own = static_cast<float>(kind == Norm::kL2 ? sqrt(shared.lanes[0]) : shared.lanes[0]);
            const float scale = 65536.0f * levels / own;
            *norm = own;
            *quantizer = {scale, own / levels, is_finite(own) && own > 0.0f && is_finite(scale)};
        });
    }

  private:
    static HVD_COMPRESS_TILE bool is_finite(float x) { return Traits<float>::key(x) < Traits<float>::kInfinityKey; }
};

// Philox4x32-7, as csrc/cpu/quantize/philox.hpp has it for vectors.
HVD_COMPRESS_TILE void philox(std::uint32_t (&counter)[4], std::uint32_t key0, std::uint32_t key1) {
    for (int round = 0; round < 7; ++round) {
        const std::uint64_t first = std::uint64_t{counter[0]} * 0xd2511f53u;
        const std::uint64_t second = std::uint64_t{counter[2]} * 0xcd9e8d57u;
        counter[0] = static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key0;
        counter[1] = static_cast<std::uint32_t>(second);
        counter[2] = static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key1;
        counter[3] = static_cast<std::uint32_t>(first);
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
}

// Rounds x to whole numbers, leaves in it what is lost, and packs the numbers. Those of one counter lie sixteen apart.
template <class R>
struct Quantize {
    static constexpr int kThreads = 256;
    static constexpr int kTile = 4096;
    static constexpr int kGroup = 128, kLanes = 16;
    struct Shared {
        std::uint8_t q[kTile];
    };
    R* x;
    std::int64_t n;
    const Quantizer* quantizer;
    RandomKey key;
    int bits;
    std::uint8_t* packed;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        const std::int64_t start = block.index * kTile;
        const Quantizer by = *quantizer;
        const std::int32_t most = quantize_levels(bits) << 16;
        block.each([&](int t) {
            for (int own = t; own < kTile / kGroup * kLanes; own += kThreads) {
                const int group = own / kLanes, lane = own % kLanes;
                const std::uint64_t counter = static_cast<std::uint64_t>(start / kGroup + group) * kLanes + lane;
                std::uint32_t words[4] = {static_cast<std::uint32_t>(counter),
                                          static_cast<std::uint32_t>(counter >> 32), key.step, key.bucket};
                philox(words, static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32));
                HVD_COMPRESS_UNROLL
                for (int part = 0; part < kGroup / kLanes; ++part) {
                    const int place = group * kGroup + part * kLanes + lane;
                    const std::uint32_t random = words[part % 4] >> (part < 4 ? 0 : 16) & 0xffffu;
                    shared.q[place] = 0;
                    if (start + place >= n || !by.usable) continue;
                    const float v = to_float(x[start + place]);
                    const float scaled = from_bits(to_bits(v) & 0x7fffffffu) * by.scale;
                    // Compared as floats: what is too large for a whole number is not converted.
                    const std::int32_t units =
                        scaled < static_cast<float>(most) ? static_cast<std::int32_t>(scaled) : most;
                    const auto whole = static_cast<std::int32_t>((static_cast<std::uint32_t>(units) + random) >> 16);
                    const std::int32_t q = v < 0.0f ? -whole : whole;
                    x[start + place] = from_float<R>(v - static_cast<float>(q) * by.unit);
                    shared.q[place] = static_cast<std::uint8_t>(q);
                }
            }
        });
        block.sync();
        block.each([&](int t) {
            const int each = 8 / bits;
            const std::int64_t first = start / each, end = quantized_bytes(n, bits);
            const std::uint32_t mask = (1u << bits) - 1;
            for (int byte = t; byte < kTile / each && first + byte < end; byte += kThreads) {
                std::uint32_t together = 0;
                for (int j = 0; j < each; ++j) together |= (shared.q[byte * each + j] & mask) << (j * bits);
                packed[first + byte] = static_cast<std::uint8_t>(together);
            }
        });
    }
};

template <class T>
struct AddNumbers {
    static constexpr int kThreads = kSignThreads;
    struct Shared {};
    const std::uint8_t* packed;
    const float* norm;
    T* out;
    std::int64_t n;
    bool aligned;
    int bits;
    float weight;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        const float unit = *norm / static_cast<float>(quantize_levels(bits));
        const int each = 8 / bits, top = 32 - bits;
        block.each([&](int t) {
            const SignTile tile{block.index};
            float v[kSignRounds][kWide];
            in_tile(tile, n, aligned, [&](auto whole) { load<decltype(whole)::value>(out, tile, t, n, v); });
            for_each_value(v, [&](float& x, int round, int j) {
                const std::int64_t i = tile.at(round, t) + j;
                const std::uint32_t byte = i < n ? packed[i / each] : 0u;
                const std::uint32_t raised = byte << (top - i % each * bits);
                x += weight * (static_cast<float>(static_cast<std::int32_t>(raised) >> top) * unit);
            });
            in_tile(tile, n, aligned, [&](auto whole) { store<decltype(whole)::value>(out, tile, t, n, v); });
        });
    }
};

}  // namespace hvd_compress::cuda

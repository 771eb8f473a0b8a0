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
    static constexpr int kGroup = 128, kLanes = 16, kParts = kGroup / kLanes;
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
                const std::int64_t first = start + group * kGroup + lane;
                float v[kParts];
                HVD_COMPRESS_UNROLL
                for (int part = 0; part < kParts; ++part) {  // all are under way before the first is used
                    v[part] = first + part * kLanes < n ? to_float(x[first + part * kLanes]) : 0.0f;
                }
                HVD_COMPRESS_UNROLL
                for (int part = 0; part < kParts; ++part) {
                    const std::uint32_t random = words[part % 4] >> (part < 4 ? 0 : 16) & 0xffffu;
                    const float scaled = from_bits(to_bits(v[part]) & 0x7fffffffu) * by.scale;
                    // Compared as floats: what is too large for a whole number is not converted.
                    const std::int32_t units =
                        scaled < static_cast<float>(most) ? static_cast<std::int32_t>(scaled) : most;
                    const auto whole = static_cast<std::int32_t>((static_cast<std::uint32_t>(units) + random) >> 16);
                    const std::int32_t q = !by.usable ? 0 : v[part] < 0.0f ? -whole : whole;
                    v[part] -= static_cast<float>(q) * by.unit;
                    shared.q[group * kGroup + part * kLanes + lane] = static_cast<std::uint8_t>(q);
                }
                if (!by.usable) continue;
                HVD_COMPRESS_UNROLL
                for (int part = 0; part < kParts; ++part) {
                    if (first + part * kLanes < n) x[first + part * kLanes] = from_float<R>(v[part]);
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

template <class T, int bits>
struct AddNumbers {
    static constexpr int kThreads = kSignThreads;
    static constexpr int kBytes = kWide * bits / 8;  // of four numbers
    struct Shared {};
    struct alignas(kBytes) Bytes {
        std::uint8_t byte[kBytes];
    };
    const std::uint8_t* packed;
    const float* norm;
    T* out;
    std::int64_t n;
    bool aligned;  // both
    float weight;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared&) const {
        const float unit = *norm / static_cast<float>(quantize_levels(bits));
        block.each([&](int t) {
            const SignTile tile{block.index};
            in_tile(tile, n, aligned, [&](auto whole) {
                float v[kSignRounds][kWide];
                std::uint32_t words[kSignRounds];
                load<decltype(whole)::value>(out, tile, t, n, v);
                HVD_COMPRESS_UNROLL
                for (int round = 0; round < kSignRounds; ++round) {
                    words[round] = four<decltype(whole)::value>(tile.at(round, t));
                }
                for_each_value(v, [&](float& x, int round, int j) {
                    const std::uint32_t raised = words[round] << (32 - bits * (j + 1));
                    x += weight * (static_cast<float>(static_cast<std::int32_t>(raised) >> (32 - bits)) * unit);
                });
                store<decltype(whole)::value>(out, tile, t, n, v);
            });
        });
    }

  private:
    // The numbers of the elements from i on, which is a multiple of four.
    template <bool whole>
    HVD_COMPRESS_TILE std::uint32_t four(std::int64_t i) const {
        const std::uint8_t* const from = packed + i / kWide * kBytes;
        std::uint32_t word = 0;
        if constexpr (whole) {
            const Bytes bytes = *reinterpret_cast<const Bytes*>(from);
            HVD_COMPRESS_UNROLL
            for (int b = 0; b < kBytes; ++b) word |= std::uint32_t{bytes.byte[b]} << (8 * b);
        } else {
            HVD_COMPRESS_UNROLL
            for (int b = 0; b < kBytes; ++b) {
                if (i + b * 8 / bits < n) word |= std::uint32_t{from[b]} << (8 * b);
            }
        }
        return word;
    }
};

}  // namespace hvd_compress::cuda

#include "table.hpp"

#include <algorithm>
#include <mutex>
#include <numeric>

namespace hvd_compress::cpu {
namespace {

constexpr int kDigits = 4;

// How often each number is expected: digits do not depend on each other.
std::vector<std::uint64_t> weights_of(int most, int table) {
    const std::uint64_t base = digit_base(most), values = 2 * most + 1;
    std::vector<std::uint64_t> weights;
    std::uint64_t count = 1;
    for (int part = 0; part < kDigits; ++part) count *= base;
    weights.assign(1 << 8 << bits_above_byte(most), 0);  // whatever codes hold
    for (std::uint64_t number = 0; number < count; ++number) {
        std::uint64_t weight = 1, left = number;
        for (int digit = 0; digit < kDigits; ++digit, left /= base) {
            const auto value = static_cast<int>(left % base);
            if (value >= static_cast<int>(values)) {
                weight = 0;
                break;
            }
            weight *= kCodedWeights[most - 2][table][std::abs(value - most)];
        }
        weights[number] = weight;
    }
    return weights;
}

// The lengths of an optimal code of at most kCodedLongest bits: package-merge (Larmore and Hirschberg 1990). What has
// no weight has no code word.
std::vector<int> lengths_of(const std::vector<std::uint64_t>& weights) {
    struct Package {
        std::uint64_t weight;
        std::vector<std::uint16_t> numbers;
    };
    std::vector<Package> leaves, packages;
    for (std::size_t number = 0; number < weights.size(); ++number) {
        if (weights[number] != 0) leaves.push_back({weights[number], {static_cast<std::uint16_t>(number)}});
    }
    const auto lighter = [](const Package& a, const Package& b) { return a.weight < b.weight; };
    std::stable_sort(leaves.begin(), leaves.end(), lighter);
    for (int level = 0; level < kCodedLongest; ++level) {
        std::vector<Package> merged;
        std::merge(leaves.begin(), leaves.end(), packages.begin(), packages.end(), std::back_inserter(merged), lighter);
        packages.clear();
        if (level == kCodedLongest - 1) {
            packages = std::move(merged);
            break;
        }
        for (std::size_t i = 0; i + 1 < merged.size(); i += 2) {
            Package pair = std::move(merged[i]);
            pair.weight += merged[i + 1].weight;
            pair.numbers.insert(pair.numbers.end(), merged[i + 1].numbers.begin(), merged[i + 1].numbers.end());
            packages.push_back(std::move(pair));
        }
    }
    std::vector<int> lengths(weights.size(), 0);
    for (std::size_t i = 0; i < 2 * leaves.size() - 2; ++i) {
        for (const std::uint16_t number : packages[i].numbers) ++lengths[number];
    }
    return lengths;
}

std::uint32_t reversed(std::uint32_t word, int length) {
    std::uint32_t found = 0;
    for (int bit = 0; bit < length; ++bit) found |= (word >> bit & 1) << (length - 1 - bit);
    return found;
}

CodeTable made(int most, int table) {
    const std::vector<int> lengths = lengths_of(weights_of(most, table));
    CodeTable found;
    found.words.assign(lengths.size(), 0);
    found.numbers.fill(0);
    std::uint32_t word = 0;
    for (int length = 1; length <= kCodedLongest; ++length, word <<= 1) {
        for (std::size_t number = 0; number < lengths.size(); ++number) {
            if (lengths[number] != length) continue;
            const std::uint32_t bits = reversed(word++, length);
            found.words[number] = bits << 4 | static_cast<std::uint32_t>(length);
            for (std::uint32_t rest = 0; rest < 1u << (kCodedLongest - length); ++rest) {
                found.numbers[rest << length | bits] =
                    static_cast<std::uint16_t>(number << 4 | static_cast<unsigned>(length));
            }
        }
    }
    return found;
}

}  // namespace

const CodeTable& code_table(int most, int table) {
    static std::once_flag once[2][kCodedTables];
    static CodeTable tables[2][kCodedTables];
    CodeTable& found = tables[most - 2][table];
    std::call_once(once[most - 2][table], [&] { found = made(most, table); });
    return found;
}

}  // namespace hvd_compress::cpu

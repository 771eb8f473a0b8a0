#include "table.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <numeric>

namespace hvd_compress::cpu {
namespace {

constexpr int kFamilies = 4;

constexpr int family_of(int most) { return most == 7 ? 3 : most - 1; }

// Of each table how often q = 0, and each of 1 to most and of -1 to -most, is expected among about 4096: the centres of
// what gradients of two trainings had, and values of some distributions, with blocks of 64, 128 and 256.
constexpr std::uint16_t kWeights[kFamilies][kCodedTables][8] = {
    // most = 1
    {{4035, 31},
     {3953, 72},
     {3850, 123},
     {3727, 184},
     {3604, 246},
     {3482, 307},
     {3359, 369},
     {3236, 430},
     {3072, 512},
     {2908, 594},
     {2703, 696},
     {2499, 799},
     {2294, 901},
     {2048, 1024},
     {1802, 1147},
     {1556, 1270}},
    // most = 2
    {{3970, 45, 18},
     {3557, 233, 36},
     {3220, 402, 37},
     {3018, 469, 70},
     {2856, 573, 47},
     {2784, 542, 114},
     {2632, 647, 85},
     {2482, 754, 53},
     {2302, 828, 69},
     {2378, 743, 116},
     {2097, 914, 85},
     {2386, 666, 189},
     {1974, 943, 118},
     {1835, 990, 141},
     {1664, 1039, 177},
     {1397, 1112, 237}},
    // most = 3
    {{3957, 37, 16, 16},
     {3437, 233, 71, 25},
     {2862, 504, 91, 22},
     {2658, 520, 151, 49},
     {2436, 676, 126, 28},
     {2641, 444, 154, 130},
     {2344, 618, 192, 67},
     {2126, 767, 173, 45},
     {1867, 873, 211, 30},
     {2195, 552, 267, 131},
     {1991, 725, 250, 77},
     {1693, 901, 254, 46},
     {1487, 950, 304, 51},
     {1423, 925, 341, 70},
     {1271, 945, 382, 85},
     {1141, 934, 440, 103}},
    // most = 7
    {{3931, 20, 16, 13, 9, 6, 4, 14},
     {3248, 154, 102, 68, 42, 25, 15, 17},
     {2425, 616, 135, 43, 18, 9, 5, 10},
     {2289, 387, 198, 122, 77, 47, 32, 41},
     {1868, 558, 251, 136, 78, 44, 25, 21},
     {1444, 826, 261, 120, 60, 30, 15, 14},
     {1805, 421, 234, 158, 115, 83, 66, 68},
     {1143, 816, 309, 157, 87, 48, 26, 33},
     {1482, 539, 296, 186, 121, 77, 47, 40},
     {1182, 644, 366, 221, 124, 59, 27, 16},
     {935, 703, 420, 237, 124, 57, 24, 15},
     {862, 659, 418, 256, 147, 77, 36, 24},
     {725, 610, 451, 299, 174, 88, 40, 25},
     {685, 566, 438, 311, 195, 107, 53, 34},
     {577, 539, 445, 329, 213, 123, 63, 48},
     {506, 491, 447, 352, 233, 143, 75, 53}},
};

// The whole number of part `part` of a symbol, or more than most where it has none that may be.
int part_of(int most, int symbol, int part) {
    if (has_digits(most)) {
        for (; part > 0; --part) symbol /= digit_base(most);
        const int digit = symbol % digit_base(most);
        return digit <= 2 * most ? digit - most : most + 1;
    }
    const int bits = most == 7 ? 4 : 2, field = symbol >> part * bits & ((1 << bits) - 1);
    const int number = field >> (bits - 1) ? field - (1 << bits) : field;
    return number < -most ? most + 1 : number;
}

// How often each symbol is expected: whole numbers do not depend on each other. Some symbols never are.
std::vector<std::uint64_t> weights_of(int most, int table) {
    const int parts = most == 7 ? 2 : 4;
    int count = 256;
    if (has_digits(most)) count = digit_base(most) * digit_base(most) * digit_base(most) * digit_base(most);
    std::vector<std::uint64_t> weights(std::size_t{256} << (has_digits(most) ? bits_above_byte(most) : 0), 0);
    for (int symbol = 0; symbol < count; ++symbol) {
        std::uint64_t weight = 1;
        for (int part = 0; part < parts; ++part) {
            const int number = part_of(most, symbol, part);
            weight *= number > most ? 0 : kWeights[family_of(most)][table][std::abs(number)];
        }
        weights[symbol] = weight;
    }
    return weights;
}

// The lengths of an optimal code of at most longest bits: package-merge (Larmore and Hirschberg 1990). What has
// no weight has no code word.
std::vector<int> lengths_of(const std::vector<std::uint64_t>& weights, int longest) {
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
    for (int level = 0; level < longest; ++level) {
        std::vector<Package> merged;
        std::merge(leaves.begin(), leaves.end(), packages.begin(), packages.end(), std::back_inserter(merged), lighter);
        packages.clear();
        if (level == longest - 1) {
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
    const int longest = coded_longest(most);
    const std::vector<int> lengths = lengths_of(weights_of(most, table), longest);
    CodeTable found;
    found.words.assign(lengths.size(), 0);
    found.numbers.assign(std::size_t{1} << longest, 0);
    std::uint32_t word = 0;
    for (int length = 1; length <= longest; ++length, word <<= 1) {
        for (std::size_t number = 0; number < lengths.size(); ++number) {
            if (lengths[number] != length) continue;
            const std::uint32_t bits = reversed(word++, length);
            found.words[number] = bits << 4 | static_cast<std::uint32_t>(length);
            for (std::uint32_t rest = 0; rest < 1u << (longest - length); ++rest) {
                found.numbers[rest << length | bits] =
                    static_cast<std::uint16_t>(number << 4 | static_cast<unsigned>(length));
            }
        }
    }
    return found;
}

}  // namespace

const CodeTables& code_tables(int most) {
    static std::once_flag once[kFamilies];
    static CodeTables families[kFamilies];
    CodeTables& found = families[family_of(most)];
    std::call_once(once[family_of(most)], [&] {
        for (int table = 0; table < kCodedTables; ++table) {
            found.tables[table] = made(most, table);
            const std::vector<std::uint32_t>& words = found.tables[table].words;
            found.lengths.resize(words.size());
            for (std::size_t symbol = 0; symbol < words.size(); ++symbol) {
                const std::uint32_t length = words[symbol] & 15;
                found.lengths[symbol][table] = static_cast<std::uint8_t>(length == 0 ? 15 : length);
            }
        }
    });
    return found;
}

}  // namespace hvd_compress::cpu

// Signs, levels and blocks: one code for each element.
#include <algorithm>
#include <memory>

#include "common.hpp"
#include "hvd_compress/blocks.hpp"
#include "hvd_compress/coded.hpp"
#include "hvd_compress/quantize.hpp"
#include "hvd_compress/sign.hpp"

namespace fuzz {
namespace {

using namespace hvd_compress;

constexpr RandomKey kKey{7, 3, 1};

Array array(std::vector<float>& values) { return {values.data(), DType::kFloat32}; }
ConstArray const_array(const std::vector<float>& values) { return {values.data(), DType::kFloat32}; }

void made(Status status) { expect(status == Status::kOk, "the fuzzer itself: a payload cannot be made"); }
void decoded(Status status) { expect(status == Status::kOk, "a status that is neither kOk nor of a bad payload"); }

void make_sign(Random& random, Payload& payload) {
    common_settings(random, payload, 20000);
    const std::int64_t n = payload[kN];
    std::vector<float> x = gradient(random, n), rest(x.size());
    Bytes bits(static_cast<std::size_t>(sign_bytes(n)));
    std::vector<double> scratch(cpu::sign_workspace_bytes(n) / sizeof(double) + 1);
    float scale = 0.0f;
    made(cpu::sign_accumulate(const_array(x), const_array(rest), array(rest), n, bits.data(), &scale,
                              {scratch.data(), scratch.size() * sizeof(double)}, nullptr));
    payload.parts = {bits, bytes_of(&scale, 1)};
}

bool decode_sign(const Payload& payload, Memory& memory) {
    const std::uint8_t* const bits = memory.input(payload.parts[0], payload[kShift]);
    const float* const scale = memory.input<float>(payload.parts[1], payload[kShift]);
    decode_dense(payload, memory, dtype_of(payload), [&](void* out) {
        decoded(cpu::sign_add(bits, scale, {out, dtype_of(payload)}, payload[kN], weight_of(payload), nullptr));
    });
    return true;
}

void make_quantized(Random& random, Payload& payload) {
    static constexpr int kBits[] = {2, 4, 8};
    common_settings(random, payload, 20000);
    const std::int64_t n = payload[kN];
    const int bits = random.of(kBits);
    payload[kMost] = bits;
    std::vector<float> x = gradient(random, n), rest(x.size());
    Bytes packed(static_cast<std::size_t>(quantized_bytes(n, bits)));
    std::vector<double> scratch(cpu::quantize_workspace_bytes(n) / sizeof(double) + 1);
    float norm = 0.0f;
    const Norm kind = random.one_in(2) ? Norm::kL2 : Norm::kMax;
    made(cpu::quantize_accumulate(const_array(x), const_array(rest), array(rest), n, bits, kind, kKey, packed.data(),
                                  &norm, {scratch.data(), scratch.size() * sizeof(double)}, nullptr));
    payload.parts = {packed, bytes_of(&norm, 1)};
}

bool decode_quantized(const Payload& payload, Memory& memory) {
    const std::uint8_t* const packed = memory.input(payload.parts[0], payload[kShift]);
    const float* const norm = memory.input<float>(payload.parts[1], payload[kShift]);
    decode_dense(payload, memory, dtype_of(payload), [&](void* out) {
        decoded(cpu::quantize_add(packed, norm, {out, dtype_of(payload)}, payload[kN], static_cast<int>(payload[kMost]),
                                  weight_of(payload), nullptr));
    });
    return true;
}

BlockFormat format_of(const Payload& payload) {
    return {static_cast<int>(payload[kMost]), payload[kBlock], static_cast<BlockFit>(payload[kFit])};
}

void quantize(Random& random, Payload& payload) {
    const std::int64_t n = payload[kN];
    const BlockFormat format = format_of(payload);
    std::vector<float> x = gradient(random, n);
    Bytes codes(static_cast<std::size_t>(block_code_bytes(n, format.most)));
    std::vector<std::uint16_t> units(static_cast<std::size_t>(block_count(n, format.block)));
    const RandomKey* const key = format.fit == BlockFit::kMax && random.one_in(2) ? &kKey : nullptr;
    made(cpu::block_quantize(const_array(x), {nullptr, DType::kFloat32}, {nullptr, DType::kFloat32}, n, format, key,
                             codes.data(), units.data(), nullptr));
    payload.parts.push_back(codes);
    payload.parts.push_back(bytes_of(units.data(), static_cast<std::int64_t>(units.size())));
}

void block_settings(Random& random, Payload& payload, std::int64_t large) {
    static constexpr int kMosts[] = {127, 7, 3, 2, 1};
    common_settings(random, payload, large);
    payload[kMost] = random.of(kMosts);
    payload[kBlock] = kBlockGroup << random.below(5);
    payload[kFit] = payload[kMost] == 1 ? random.below(2) : 0;
    payload.parts.clear();
}

void make_blocks(Random& random, Payload& payload) {
    block_settings(random, payload, 70000);
    for (std::int64_t sources = 1 + random.below(3); sources > 0; --sources) quantize(random, payload);
}

std::vector<BlockCodes> sources_of(const Payload& payload, Memory& memory) {
    std::vector<BlockCodes> sources;
    for (std::size_t part = 0; part + 1 < payload.parts.size(); part += 2) {
        sources.push_back({memory.input(payload.parts[part], payload[kShift]),
                           memory.input<std::uint16_t>(payload.parts[part + 1], payload[kShift])});
    }
    return sources;
}

bool decode_blocks(const Payload& payload, Memory& memory) {
    const std::vector<BlockCodes> sources = sources_of(payload, memory);
    const DType dtype = dtype_of(payload);
    std::int32_t finite = -1;
    const void* const out = decode_dense(payload, memory, dtype, [&](void* to) {
        decoded(cpu::block_sum(sources.data(), static_cast<int>(sources.size()), payload[kN], format_of(payload),
                               weight_of(payload), {to, dtype}, &finite, nullptr));
    });
    expect(finite == (all_finite(out, dtype, payload[kN]) ? 1 : 0), "`finite` is wrong");
    return true;
}

bool decode_summands(const Payload& payload, Memory& memory) {
    const std::vector<BlockCodes> sources = sources_of(payload, memory);
    const BlockFormat format = format_of(payload);
    const DType dtype = dtype_of(payload);
    const std::int64_t n = payload[kN], place = n % (static_cast<std::int64_t>(sources.size()) + 1);
    const RandomKey* const key = format.fit == BlockFit::kMax && n % 2 != 0 ? &kKey : nullptr;
    const void* const own = memory.output(n * size_of(dtype), payload[kShift] * size_of(dtype));
    auto* const codes = static_cast<std::uint8_t*>(memory.output(block_code_bytes(n, format.most)));
    auto* const units = static_cast<std::uint16_t*>(memory.output(2 * block_count(n, format.block)));
    decode_dense(payload, memory, DType::kFloat32, [&](void* rest) {
        decoded(cpu::block_sum_quantize({own, dtype}, sources.data(), static_cast<int>(sources.size()),
                                        static_cast<int>(place), {rest, DType::kFloat32}, n, format, key, codes, units,
                                        nullptr));
    });
    return true;
}

void make_coded(Random& random, Payload& payload) {
    static constexpr int kMosts[] = {7, 3, 2, 1};
    block_settings(random, payload, 70000);
    payload[kMost] = random.of(kMosts);
    payload[kFit] = 0;
    quantize(random, payload);
    const std::int64_t n = payload[kN];
    const int most = static_cast<int>(payload[kMost]);
    Bytes codes = payload.parts[0], coded(static_cast<std::size_t>(coded_bytes(n, most)));
    if (random.one_in(16) && !codes.empty()) codes[0] = 0xff;  // for which there is no word: raw
    std::int64_t bytes = 0;
    made(cpu::block_encode(codes.data(), n, most, coded.data(), &bytes));
    coded.resize(static_cast<std::size_t>(bytes));
    payload.parts = {coded};
}

// What was accepted are codes: encoded and decoded again, they are the same.
void encode_again(const Payload& payload, Memory& memory, const std::uint8_t* codes) {
    const std::int64_t n = payload[kN], count = block_code_bytes(n, static_cast<int>(payload[kMost]));
    const int most = static_cast<int>(payload[kMost]);
    auto* const coded = static_cast<std::uint8_t*>(memory.output(coded_bytes(n, most)));
    auto* const again = static_cast<std::uint8_t*>(memory.output(count));
    std::int64_t bytes = 0;
    decoded(cpu::block_encode(codes, n, most, coded, &bytes));
    expect(bytes <= coded_bytes(n, most), "more bytes than coded_bytes()");
    decoded(cpu::block_decode(coded, bytes, n, most, again));
    expect(std::equal(codes, codes + count, again), "accepted codes become others");
}

bool decode_coded(const Payload& payload, Memory& memory) {
    const int most = static_cast<int>(payload[kMost]);
    const std::int64_t n = payload[kN], bytes = static_cast<std::int64_t>(payload.parts[0].size());
    const std::uint8_t* const coded = memory.input(payload.parts[0], payload[kShift]);
    auto* const codes = static_cast<std::uint8_t*>(memory.output(block_code_bytes(n, most), payload[kShift]));
    const Status status = cpu::block_decode(coded, bytes, n, most, codes);
    if (status == Status::kBadPayload) return false;
    decoded(status);
    if (payload[kCompare] != 0) encode_again(payload, memory, codes);
    return true;
}

}  // namespace

std::vector<Decoder> dense_decoders() {
    return {
        {"sign_add", false, &make_sign, &decode_sign},
        {"quantize_add", false, &make_quantized, &decode_quantized},
        {"block_sum", false, &make_blocks, &decode_blocks},
        {"block_sum_quantize", false, &make_blocks, &decode_summands},
        {"block_decode", true, &make_coded, &decode_coded},
    };
}

}  // namespace fuzz

// Runs every CUDA kernel on inputs that take its branches, and prints a checksum of each result. Compiled with
// HVD_COMPRESS_FIBERS it also prints what the fibers find, and fails then; compiled without, what is right.
//
//     played_at_once [--seed N] [--only NAME] [--part I/N] [--leave-out ADDRESS]... [--stop-at-first] [--places]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "../../../../csrc/cpu/coded/table.hpp"
#include "hvd_compress/blocks.hpp"
#include "hvd_compress/coded.hpp"
#include "hvd_compress/curve.hpp"
#include "hvd_compress/elias_fano.hpp"
#include "hvd_compress/feedback.hpp"
#include "hvd_compress/mstopk.hpp"
#include "hvd_compress/quantize.hpp"
#include "hvd_compress/scale.hpp"
#include "hvd_compress/scatter.hpp"
#include "hvd_compress/sign.hpp"
#include "hvd_compress/threshold.hpp"
#include "hvd_compress/topk.hpp"
#include "inputs.hpp"

namespace {

using namespace hvd_compress;
using namespace hvd_compress::played;

// A gradient with its residual.
struct Fed {
    Tensor grad, residual, out;

    Fed(const Layout& layout, std::int64_t n, Kind kind)
        : grad(layout.grad, drawn(n, kind, 1), layout.offset),
          residual(layout.wide, drawn(n, kind, 2), layout.offset),
          out(layout.apart ? Tensor(layout.wide, n, layout.offset) : residual) {}
};

Workspace workspace(std::size_t bytes) { return {allocate(bytes), bytes}; }

void check(Status status) {
    if (status == Status::kOk) return;
    std::printf("%s ends with status %d\n", running.c_str(), static_cast<int>(status));
    std::exit(1);
}

// What goes wrong with indices, and where.
struct Faults {
    Device<unsigned long long> first{1};
    Faults() { *first.data = kNoFault; }
    Fault fault() const { return {first.data, 7}; }
};

constexpr std::int64_t kNumel = 20011;  // five tiles of topk, three of scatter

void topk(const Layout& layout, cuda::TopkWay way, Kind kind, std::int64_t n, std::int64_t k) {
    const Fed fed(layout, n, kind);
    Device<std::int32_t> indices(k);
    Device<float> values(k);
    cuda::topk_force(way);
    check(cuda::topk_accumulate(fed.grad.read(), fed.residual.read(), fed.out.write(), n, k, indices.data, values.data,
                                workspace(cuda::topk_workspace_bytes(n, k)), nullptr));
    indices.print("indices");
    values.print("values");
    fed.out.print("out");
    Tensor selected(layout.grad, k, 0);
    check(cuda::topk(fed.grad.read(), n, k, indices.data, selected.data, workspace(cuda::topk_workspace_bytes(n, k)),
                     nullptr));
    indices.print("indices alone");
    selected.print("values alone");
    cuda::topk_force(cuda::TopkWay::kAuto);
}

void mstopk(const Layout& layout, Kind kind, std::int64_t n, std::int64_t k) {
    const Fed fed(layout, n, kind);
    Device<std::int32_t> indices(k);
    Device<float> values(k);
    check(cuda::mstopk_accumulate(fed.grad.read(), fed.residual.read(), fed.out.write(), n, k, 25, indices.data,
                                  values.data, workspace(cuda::mstopk_workspace_bytes(n, k)), nullptr));
    indices.print("indices");
    values.print("values");
    fed.out.print("out");
    Tensor selected(layout.grad, k, 0);
    check(cuda::mstopk(fed.grad.read(), n, k, 9, indices.data, selected.data,
                       workspace(cuda::mstopk_workspace_bytes(n, k)), nullptr));
    selected.print("values alone");
}

void threshold(const Layout& layout, bool momentum, Kind kind, std::int64_t n) {
    const Tensor grad(layout.grad, drawn(n, kind, 1), layout.offset);
    const Tensor residual(DType::kFloat32, drawn(n, kind, 2), layout.offset);
    const Tensor velocity(DType::kFloat32, drawn(n, kind, 3), layout.offset);
    const auto floats = [](const Tensor& tensor) { return reinterpret_cast<float*>(tensor.data); };
    const Tensor out = layout.apart ? Tensor(DType::kFloat32, n, layout.offset) : residual;
    const Tensor velocity_out = layout.apart ? Tensor(DType::kFloat32, n, layout.offset) : velocity;
    const float tau = 2.5f;
    const Workspace work = workspace(cuda::threshold_workspace_bytes(n));
    Device<std::int64_t> count(1);
    const Momentum by =
        momentum ? Momentum{0.9f, floats(velocity), floats(velocity_out)} : Momentum{0.0f, nullptr, nullptr};
    check(
        cuda::threshold_accumulate(grad.read(), floats(residual), by, floats(out), n, tau, count.data, work, nullptr));
    Device<std::int32_t> indices(*count.data);
    Device<float> values(*count.data);
    check(cuda::threshold_take(floats(out), momentum ? floats(velocity_out) : nullptr, n, tau, *count.data,
                               indices.data, values.data, work, nullptr));
    count.print("count");
    indices.print("indices");
    values.print("values");
    out.print("out");
    if (momentum) return velocity_out.print("velocity");
    check(cuda::threshold_count(grad.read(), n, tau, count.data, work, nullptr));
    const Tensor selected(layout.grad, *count.data, 0);
    Device<std::int32_t> alone(*count.data);
    check(cuda::threshold_select(grad.read(), n, tau, *count.data, alone.data, selected.data, work, nullptr));
    alone.print("indices alone");
    selected.print("values alone");
}

void sign(const Layout& layout, Kind kind, std::int64_t n) {
    const Fed fed(layout, n, kind);
    Device<std::uint8_t> bits(sign_bytes(n));
    Device<float> scale(1), kept(1);
    *kept.data = 0.25f;
    const Workspace work = workspace(cuda::sign_workspace_bytes(n));
    check(cuda::sign_accumulate_kept(fed.grad.read(), fed.residual.read(), kept.data, fed.out.write(), n, bits.data,
                                     kept.data, work, nullptr));
    bits.print("bits kept");
    kept.print("scale kept");
    fed.out.print("kept");
    check(cuda::sign_accumulate(fed.grad.read(), fed.residual.read(), fed.out.write(), n, bits.data, scale.data, work,
                                nullptr));
    bits.print("bits");
    scale.print("scale");
    fed.out.print("out");
    check(cuda::sign_add(bits.data, scale.data, fed.out.write(), n, 0.3f, nullptr));
    fed.out.print("sum");
}

void quantize(const Layout& layout, Norm norm_kind, int bits, Kind kind, std::int64_t n) {
    const Fed fed(layout, n, kind);
    Device<std::uint8_t> packed(quantized_bytes(n, bits));
    Device<float> norm(1);
    check(cuda::quantize_accumulate(fed.grad.read(), fed.residual.read(), fed.out.write(), n, bits, norm_kind,
                                    {1, 2, 3}, packed.data, norm.data, workspace(cuda::quantize_workspace_bytes(n)),
                                    nullptr));
    packed.print("packed");
    norm.print("norm");
    fed.out.print("out");
    check(cuda::quantize_add(packed.data, norm.data, fed.out.write(), n, bits, 0.3f, nullptr));
    fed.out.print("sum");
}

// Without a residual, from more ranks than addresses travel with a small launch.
void many_blocks(const Layout& layout, std::int64_t n) {
    const BlockFormat format{7, 128, BlockFit::kMax};
    const Tensor grad(layout.grad, drawn(n, Kind::kNormal, 1), layout.offset), sum(layout.wide, n, layout.offset);
    const Device<std::uint8_t> codes(block_code_bytes(n, 7)), again(block_code_bytes(n, 7));
    const Device<std::uint16_t> units(block_count(n, 128)), units_again(block_count(n, 128));
    const Device<std::int32_t> finite(1);
    const ConstArray nothing{nullptr, DType::kFloat32};
    check(cuda::block_quantize(grad.read(), nothing, {nullptr, DType::kFloat32}, n, format, nullptr, codes.data,
                               units.data, nullptr));
    codes.print("codes");
    const std::vector<BlockCodes> sources(40, BlockCodes{codes.data, units.data});
    check(cuda::block_sum(sources.data(), 40, n, format, 0.025f, sum.write(), finite.data, nullptr));
    sum.print("sum");
    check(cuda::block_sum_quantize(grad.read(), sources.data(), 40, 40, {nullptr, DType::kFloat32}, n, format, nullptr,
                                   again.data, units_again.data, nullptr));
    again.print("codes of sum");
}

void blocks(const Layout& layout, BlockFormat format, bool random, Kind kind, std::int64_t n) {
    constexpr int kRanks = 3;
    const RandomKey key{5, 6, 7};
    const RandomKey* const drawn_by = random ? &key : nullptr;
    const Tensor grad(layout.grad, drawn(n, kind, 1), layout.offset);
    const Tensor residual(DType::kFloat32, drawn(n, kind, 2), layout.offset);
    const Tensor out = layout.apart ? Tensor(DType::kFloat32, n, layout.offset) : residual;
    std::vector<BlockCodes> sources;
    for (int rank = 0; rank < kRanks; ++rank) {
        const Device<std::uint8_t> codes(block_code_bytes(n, format.most), layout.offset);
        const Device<std::uint16_t> units(block_count(n, format.block));
        check(cuda::block_quantize(grad.read(), residual.read(), out.write(), n, format, drawn_by, codes.data,
                                   units.data, nullptr));
        codes.print("codes");
        units.print("units");
        out.print("out");
        sources.push_back({codes.data, units.data});
    }
    const Tensor sum(layout.wide, n, layout.offset);
    Device<std::int32_t> finite(1);
    check(cuda::block_sum(sources.data(), kRanks, n, format, 0.25f, sum.write(), finite.data, nullptr));
    sum.print("sum");
    finite.print("finite");
    const Device<std::uint8_t> codes(block_code_bytes(n, format.most), layout.offset);
    const Device<std::uint16_t> units(block_count(n, format.block));
    check(cuda::block_sum_quantize(grad.read(), sources.data(), kRanks, 1, out.write(), n, format, drawn_by, codes.data,
                                   units.data, nullptr));
    codes.print("codes of sum");
    units.print("units of sum");
    out.print("rest");
}

// As CodedTables has them, in the device's memory.
cuda::CodedTables tables_of(int most) {
    const cpu::CodeTables& by = cpu::code_tables(most);
    const std::int64_t symbols = coded_symbols(most), found = std::int64_t{1} << coded_longest(most);
    const Device<std::uint32_t> words(kCodedTables * symbols);
    const Device<std::uint8_t> lengths(kCodedTables * symbols);
    const Device<std::uint16_t> numbers(kCodedTables * found);
    for (int table = 0; table < kCodedTables; ++table) {
        std::copy_n(by.tables[table].words.data(), symbols, words.data + table * symbols);
        std::copy_n(by.tables[table].numbers.data(), found, numbers.data + table * found);
    }
    for (std::int64_t i = 0; i < symbols; ++i) std::copy_n(by.lengths[i].data(), kCodedTables, lengths.data + 16 * i);
    return {words.data, lengths.data, numbers.data};
}

// What `worse` does to what was coded is found.
void coded(int most, Kind kind, std::int64_t n, void (*worse)(std::uint8_t* coded) = nullptr) {
    const Tensor grad(DType::kFloat32, drawn(n, kind, 1), 0);
    const Device<std::uint8_t> codes(block_code_bytes(n, most), 1), back(block_code_bytes(n, most), 3);
    const Device<std::uint8_t> coded(coded_bytes(n, most), 1);
    const Device<std::int64_t> bytes(1);
    const Device<std::int32_t> bad(2);
    const Workspace work = workspace(cuda::coded_workspace_bytes(n, most));
    const cuda::CodedTables by = tables_of(most);
    check(cuda::block_quantize(grad.read(), {nullptr, DType::kFloat32}, {nullptr, DType::kFloat32}, n,
                               {most, 64, BlockFit::kMax}, nullptr, codes.data,
                               Device<std::uint16_t>(block_count(n, 64)).data, nullptr));
    if (kind == Kind::kTies) std::memset(codes.data, 0xff, codes.count / 2);  // which no code shortens
    check(cuda::block_encode(codes.data, n, most, by, coded.data, bytes.data, work, nullptr));
    print("coded", coded.data, static_cast<std::size_t>(*bytes.data));
    if (worse != nullptr) worse(coded.data);
    check(cuda::block_decode(coded.data, *bytes.data, n, most, by, back.data, bad.data, work, nullptr));
    bad.print("bad");
    const bool same = std::equal(codes.data, codes.data + codes.count, back.data);
    if ((bad.data[0] | bad.data[1]) == (worse != nullptr) && (same || worse != nullptr)) return;
    std::printf("%s does not end as it must\n", running.c_str());
    std::exit(1);
}

// About every eleventh of n indices.
Device<std::int32_t> some_indices(std::int64_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::int32_t> found;
    for (std::int64_t i = 0; i < n; ++i) {
        if (random() % 11 == 0) found.push_back(static_cast<std::int32_t>(i));
    }
    const Device<std::int32_t> indices(static_cast<std::int64_t>(found.size()));
    std::copy(found.begin(), found.end(), indices.data);
    return indices;
}

void scatter(const Layout& layout, bool good, std::int64_t n) {
    const Faults faults;
    const Tensor out(layout.grad, drawn(n, Kind::kNormal, 1), layout.offset);
    std::vector<SparseList> lists;
    for (unsigned rank = 0; rank < 5; ++rank) {
        const Device<std::int32_t> indices = some_indices(n, rank);
        const auto count = static_cast<std::int64_t>(indices.count);
        if (!good && rank == 2) std::swap(indices.data[100], indices.data[1200]);
        lists.push_back({indices.data, Tensor(DType::kFloat32, drawn(count, Kind::kNormal, 10 + rank), 0).data, count});
    }
    const auto size = static_cast<std::int64_t>(lists.size());
    check(
        cuda::scatter_lists(lists.data(), size, DType::kFloat32, out.write(), n, 0.2f, good, faults.fault(), nullptr));
    if (good) out.print("lists");  // with a bad one it means nothing
    faults.first.print("fault of lists");
    const SparseList& list = lists[1];
    const Tensor gathered(layout.grad, list.count, 0), taken(DType::kFloat32, list.count, 0);
    Device<std::int32_t> indices(list.count);
    std::copy_n(list.indices, list.count, indices.data);
    if (!good) indices.data[50] = static_cast<std::int32_t>(n), indices.data[900] = -1;
    check(cuda::gather(out.read(), n, indices.data, list.count, gathered.data, faults.fault(), nullptr));
    check(cuda::scatter_add(indices.data, {list.values, DType::kFloat32}, list.count, out.write(), n, 0.5f,
                            faults.fault(), nullptr));
    check(cuda::take(out.write(), n, indices.data, list.count, reinterpret_cast<float*>(taken.data), faults.fault(),
                     nullptr));
    check(cuda::scatter_set(indices.data, {list.values, DType::kFloat32}, list.count, out.write(), n, 0.5f,
                            faults.fault(), nullptr));
    faults.first.print("fault");
    if (!good) return;
    gathered.print("gathered");
    taken.print("taken");
    out.print("out");
}

// More lists than one launch is told of, some of them empty, with values of the dtype of the result.
void many_lists(const Layout& layout, std::int64_t n) {
    const Faults faults;
    const Tensor out(layout.grad, n, layout.offset);
    std::vector<SparseList> lists;
    for (unsigned rank = 0; rank < 70; ++rank) {
        const Device<std::int32_t> indices = some_indices(rank % 9 == 0 ? 0 : n, rank);
        const auto count = static_cast<std::int64_t>(indices.count);
        lists.push_back({indices.data, Tensor(layout.grad, drawn(count, Kind::kNormal, rank), 0).data, count});
    }
    check(cuda::scatter_lists(lists.data(), 70, layout.grad, out.write(), n, 0.2f, true, faults.fault(), nullptr));
    out.print("lists");
    faults.first.print("fault");
}

// `dense` indices are so close that none of their bits is low.
Device<std::int32_t> dense_indices(std::int64_t n) {
    const Device<std::int32_t> indices(n - n / 4);
    for (std::size_t i = 0; i < indices.count; ++i) indices.data[i] = static_cast<std::int32_t>(i + i / 3);
    return indices;
}

void elias_fano(bool good, std::int64_t n, bool dense = false) {
    const Faults faults;
    const Device<std::int32_t> indices = dense ? dense_indices(n) : some_indices(n, 3);
    const auto count = static_cast<std::int64_t>(indices.count);
    if (!good) indices.data[count / 2] = 0;
    const EliasFano code = hvd_compress::elias_fano(n, count);
    const Device<std::uint32_t> words(code.high_words + code.low_words);
    const Device<std::int32_t> back(count);
    check(cuda::elias_fano_encode(indices.data, count, n, words.data, faults.fault(), nullptr));
    words.print("words");
    check(cuda::elias_fano_decode(words.data, count, n, back.data,
                                  workspace(cuda::elias_fano_workspace_bytes(n, count)), faults.fault(), nullptr));
    back.print("back");
    faults.first.print("fault");
}

void curve(const Layout& layout, Kind kind, std::int64_t n) {
    const Tensor x(layout.grad, drawn(n, kind, 1), layout.offset);
    const Device<std::int64_t> counts(kCurveBins + 1);
    const Device<double> shares(kCurveBins + 1);
    check(cuda::magnitude_curve(x.read(), n, counts.data, shares.data, workspace(cuda::curve_workspace_bytes(n)),
                                nullptr));
    counts.print("counts");
    shares.print("shares");
}

void accumulate(const Layout& layout, Kind kind, std::int64_t n) {
    const Fed fed(layout, n, kind);
    const Device<std::int32_t> finite(1);
    check(cuda::accumulate(fed.grad.read(), fed.residual.read(), fed.out.write(), n, finite.data, nullptr));
    finite.print("finite");
    fed.out.print("out");
    check(cuda::scale(fed.out.write(), n, 0.25f, finite.data, nullptr));
    finite.print("finite scaled");
    fed.out.print("scaled");
}

struct Case {
    std::string name;
    std::function<void()> run;
};

std::vector<Case> all_cases() {
    using cuda::TopkWay;
    std::vector<Case> cases;
    const auto add = [&](const std::string& name, auto run) { cases.push_back({name, run}); };
    const std::pair<const char*, Kind> kinds[] = {
        {"normal", Kind::kNormal}, {"ties", Kind::kTies}, {"zeros", Kind::kZeros}, {"not-finite", Kind::kNotFinite}};
    for (const Layout& layout : kLayouts) {
        const std::string own = layout.name;
        for (const auto& [kind_name, kind] : kinds) {
            const std::string name = own + "/" + kind_name;
            const std::pair<const char*, TopkWay> ways[] = {
                {"queue", TopkWay::kQueue}, {"bracket", TopkWay::kBracket}, {"radix", TopkWay::kRadix}};
            for (const auto& [way_name, way] : ways) {
                add("topk-" + std::string(way_name) + "/" + name,
                    [=] { topk(layout, way, kind, way == TopkWay::kQueue ? 9001 : kNumel, 300); });
            }
            add("topk-all/" + name, [=] { topk(layout, TopkWay::kQueue, kind, 1000, 1000); });
            add("mstopk/" + name, [=] { mstopk(layout, kind, kNumel, 300); });
            add("threshold/" + name, [=] { threshold(layout, false, kind, kNumel); });
            add("curve/" + name, [=] { curve(layout, kind, kNumel); });
        }
        for (const Kind kind : {Kind::kNormal, Kind::kNotFinite}) {
            const std::string name = own + (kind == Kind::kNormal ? "/normal" : "/not-finite");
            add("sign/" + name, [=] { sign(layout, kind, kNumel); });
            add("quantize-l2/" + name, [=] { quantize(layout, Norm::kL2, 4, kind, kNumel); });
            add("quantize-max/" + name, [=] { quantize(layout, Norm::kMax, 2, kind, kNumel); });
            add("accumulate/" + name, [=] { accumulate(layout, kind, kNumel); });
            for (const bool random : {false, true}) {
                const std::string way = name + (random ? "/random" : "/nearest");
                add("int8/" + way, [=] { blocks(layout, {127, 64, BlockFit::kMax}, random, kind, kNumel); });
                add("int4/" + way, [=] { blocks(layout, {7, 512, BlockFit::kMax}, random, kind, kNumel); });
                add("int3/" + way, [=] { blocks(layout, {3, 128, BlockFit::kMax}, random, kind, kNumel); });
                add("five/" + way, [=] { blocks(layout, {2, 256, BlockFit::kMax}, random, kind, kNumel); });
                add("int2/" + way, [=] { blocks(layout, {1, 1024, BlockFit::kMax}, random, kind, kNumel); });
            }
            add("ternary/" + name, [=] { blocks(layout, {1, 256, BlockFit::kTernary}, false, kind, kNumel); });
        }
        // Around the ends of what there is: no element, fewer than a warp has threads, none selected, all selected.
        for (const std::int64_t n : {0, 1, 31, 20011}) {
            const std::string name = own + "/" + std::to_string(n);
            for (const std::int64_t k : {std::int64_t{0}, n / 2, n}) {
                add("topk-ends/" + name + "/" + std::to_string(k), [=] {
                    topk(layout, TopkWay::kRadix, Kind::kTies, n, k);
                    mstopk(layout, Kind::kTies, n, k);
                });
            }
            if (n > 31) continue;
            add("ends/" + name, [=] {
                sign(layout, Kind::kNormal, n);
                quantize(layout, Norm::kL2, 8, Kind::kNormal, n);
                accumulate(layout, Kind::kNormal, n);
                threshold(layout, true, Kind::kNormal, n);
                curve(layout, Kind::kNormal, n);
                many_lists(layout, n);
            });
        }
        add("sign/zeros/" + own, [=] { sign(layout, Kind::kZeros, kNumel); });
        add("quantize-zeros/" + own, [=] { quantize(layout, Norm::kMax, 8, Kind::kZeros, kNumel); });
        add("many-blocks/" + own, [=] { many_blocks(layout, kNumel); });
        add("many-lists/" + own, [=] { many_lists(layout, kNumel); });
        add("topk-misled/" + own, [=] { topk(layout, TopkWay::kBracket, Kind::kMisleading, kNumel, 300); });
        add("threshold-momentum/" + own, [=] { threshold(layout, true, Kind::kNormal, kNumel); });
        add("scatter/" + own, [=] { scatter(layout, true, kNumel); });
        add("scatter-bad/" + own, [=] { scatter(layout, false, kNumel); });
    }
    // More tiles than the one block has threads that places them, and a curve of a sample.
    constexpr std::int64_t kLarge = 4300003;
    add("topk-bracket/large", [] { topk(kLayouts[5], TopkWay::kBracket, Kind::kWide, kLarge, 40000); });
    add("curve/large", [] { curve(kLayouts[0], Kind::kWide, 1100003); });
    add("threshold/large", [] { threshold(kLayouts[0], false, Kind::kNormal, kLarge); });
    add("curve/large-bf16", [] { curve(kLayouts[4], Kind::kNormal, 1100003); });
    for (const int most : {7, 3, 2, 1}) {
        const std::string name = "coded/" + std::to_string(most);
        for (const std::int64_t n : {0, 31, 40003}) {
            add(name + "/" + std::to_string(n), [=] { coded(most, Kind::kNormal, n); });
        }
        add(name + "/raw", [=] { coded(most, Kind::kTies, 40003); });
        add(name + "/table", [=] { coded(most, Kind::kNormal, 40003, [](std::uint8_t* bytes) { bytes[1] = 77; }); });
        add(name + "/length",
            [=] { coded(most, Kind::kNormal, 40003, [](std::uint8_t* bytes) { ++bytes[4], --bytes[6]; }); });
        add(name + "/total", [=] { coded(most, Kind::kNormal, 40003, [](std::uint8_t* bytes) { ++bytes[4]; }); });
    }
    add("elias-fano", [] { elias_fano(true, 400003); });
    add("elias-fano-dense", [] { elias_fano(true, 4000, true); });
    add("elias-fano-nothing", [] { elias_fano(true, 0); });
    add("elias-fano-bad", [] { elias_fano(false, 400003); });
    return cases;
}

}  // namespace

int main(int count, char** words) {
    std::string only;
    int part = 0, parts = 1;
    bool places = false;
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        const char* const next = i + 1 < count ? words[i + 1] : "";
        if (word == "--only") only = words[++i];
        if (word == "--part") std::sscanf(words[++i], "%d/%d", &part, &parts);
        if (word == "--places") places = true;
#ifdef HVD_COMPRESS_FIBERS
        if (word == "--seed") fibers::player::set_seed(std::strtoull(next, nullptr, 0)), ++i;
        if (word == "--leave-out") fibers::player::leave_out(std::strtoull(next, nullptr, 0)), ++i;
        if (word == "--stop-at-first") fibers::player::stop_at_first();
#endif
        (void)next;
    }
    int number = 0;
    for (const Case& own : all_cases()) {
        if (own.name.find(only) == std::string::npos || number++ % parts != part) continue;
        running = own.name;
        own.run();
        free_all();
        std::fflush(stdout);
    }
#ifdef HVD_COMPRESS_FIBERS
    if (places) fibers::player::print_places();
    const fibers::player::Totals totals = fibers::player::totals();
    std::printf("total %lld findings, %lld turns, %lld accesses\n", static_cast<long long>(totals.findings),
                static_cast<long long>(totals.turns), static_cast<long long>(totals.accesses));
    return totals.findings == 0 ? 0 : 66;
#else
    (void)places;
    return 0;
#endif
}

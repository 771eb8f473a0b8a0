#pragma once

#include "../launch.hpp"
#include "emit.hpp"

namespace hvd_compress::cuda {

// Hands out, in the order of their indices, the elements that `state` says are selected.
template <class S, class Source>
void launch_emit(const Elements<Source>& elements, State* state, Ranks* ranks, std::int64_t k, std::int32_t* indices,
                 S* selected, Stream stream) {
    launch(Rank<Source>{elements, state, ranks}, divided_up(elements.tiles, Rank<Source>::kTiles), stream);
    launch(Emit<Source, S>{elements, ranks, k, indices, selected}, divided_up(elements.tiles, kTopkWarps), stream);
}

}  // namespace hvd_compress::cuda

// Which ways through the launchers of csrc/cpu were taken: GCC and Clang call a function at each basic block of what is
// compiled with -fsanitize-coverage=trace-pc.
#pragma once

namespace fuzz {

// Forgets what is on its way: the next basic block has none before it.
void begin_coverage();
// Whether a way was taken since begin_coverage() that none had taken before.
bool took_new_way();

}  // namespace fuzz

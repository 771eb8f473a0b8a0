# The toolchain of `make wheel`: clang of the package ziglang, at $ZIG, which links against glibc 2.17 and takes its C++
# library along, so that a wheel runs on every Linux since 2014.
set(machine ${CMAKE_HOST_SYSTEM_PROCESSOR})
set(CMAKE_CXX_COMPILER $ENV{ZIG} c++)
set(CMAKE_CXX_COMPILER_TARGET ${machine}-linux-gnu.2.17)
# Stacks are unwound by the library that all others in the process use, too: Python before 3.14 ends threads by unwinding.
find_library(unwinder libgcc_s.so.1 PATHS /lib/${machine}-linux-gnu /lib64 /lib NO_DEFAULT_PATH REQUIRED)
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-s ${unwinder}")
set(CMAKE_EXE_LINKER_FLAGS_INIT -s)
# Debian's pyconfig.h includes that of its architecture by a path in /usr/include, of which no other header is to be seen.
set(multiarch ${CMAKE_BINARY_DIR}/multiarch)
file(MAKE_DIRECTORY ${multiarch}/${machine}-linux-gnu)
file(GLOB pythons /usr/include/${machine}-linux-gnu/python3*)
foreach(python IN LISTS pythons)
    get_filename_component(name ${python} NAME)
    file(CREATE_LINK ${python} ${multiarch}/${machine}-linux-gnu/${name} SYMBOLIC)
endforeach()
set(CMAKE_CXX_FLAGS_INIT "-isystem ${multiarch}")

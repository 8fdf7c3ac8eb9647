# The kernel files of the CPU backend and the instruction sets each may use. Every level is built into
# every binary; levels.c picks at run time. -O3 because the tiles are arrays of registers that only
# full unrolling keeps out of memory.
set(CPU_KERNEL_SOURCES cpu/levels.c cpu/kernels_portable.c)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64")
  set(CPU_AVX2_SOURCES cpu/kernels_avx2.c cpu/kernels_avx2_tile.c cpu/kernels_avx2_rows.c
      cpu/kernels_avx2_attention.c cpu/kernels_avx2_vector.c)
  set(CPU_AVX512_SOURCES cpu/kernels_avx512.c cpu/kernels_avx512_tile.c cpu/kernels_avx512_rows.c
      cpu/kernels_avx512_attention.c cpu/kernels_avx512_vector.c)
  set(CPU_KERNEL_OPTIMISE -O3)
  if(SHEAF_SANITIZE)
    # A checked, unrolled tile takes the compiler minutes: less optimisation, fewer debugging lines, memory checks by calls,
    # and arithmetic checks left to the portable kernels, which are the same sums.
    set(CPU_KERNEL_OPTIMISE -O1 -g1 -fno-sanitize=undefined)
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
      list(APPEND CPU_KERNEL_OPTIMISE --param=asan-instrumentation-with-call-threshold=0)
    else() # eight minutes of clang 14; its sanitized builds are those of the fuzzers, which run no kernel
      list(APPEND CPU_KERNEL_OPTIMISE -fno-sanitize=all)
    endif()
  endif()
  set(CPU_AVX2_OPTIONS ${CPU_KERNEL_OPTIMISE} -mavx2 -mfma -mf16c -mbmi2 -mprfchw)
  set_source_files_properties(${CPU_AVX2_SOURCES} PROPERTIES COMPILE_OPTIONS "${CPU_AVX2_OPTIONS}")
  set_source_files_properties(${CPU_AVX512_SOURCES} PROPERTIES COMPILE_OPTIONS
    "${CPU_AVX2_OPTIONS};-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mprefer-vector-width=512")
  list(APPEND CPU_KERNEL_SOURCES ${CPU_AVX2_SOURCES} ${CPU_AVX512_SOURCES})
endif()
set_source_files_properties(cpu/kernels_portable.c PROPERTIES COMPILE_OPTIONS "-O3")

"""The students on a CPU: kernels in LLVM, tiles over threads, packed weights."""

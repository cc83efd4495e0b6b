// All that the text of a kernel may include: compiled once, ahead of the kernels (build.py).
#include "cuda.h"
#include "cuda_fp16.h"
#include "mma.h"

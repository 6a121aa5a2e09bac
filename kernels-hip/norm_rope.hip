// The algorithm is the one of CUDA; dialect.h spells what differs.
#include "norm_rope.cu"

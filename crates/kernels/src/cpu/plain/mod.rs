//! Every primitive in its plainest form: f32, row by row, no lanes. The oracle of all other kernels.

//! The kernels that a user's tokens go through.

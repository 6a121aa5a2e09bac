//! The layout `rows8`, made with NEON: nothing yet.

use portolan_weights::Planes;

use super::super::rows8::Format;

/// As the function of this name for AVX2. It writes nothing and gives false: the plain code makes the layout.
pub(in crate::cpu::fast) fn pack_block(_: &Format, _: &Planes<'_>, _: usize, _: &mut [u8]) -> bool {
    false
}

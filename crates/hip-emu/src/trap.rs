//! What a trap of device code means. clang says the kind of a failed check in the instruction: `ud1` with a byte.

/// Words for the instruction that a thread stopped at. The first one is the kind of violation.
pub(crate) fn explain(code: &[u8; 8]) -> &'static str {
    let kind = match *code {
        [0x67, 0x0f, 0xb9, 0x40, kind, ..] => Some(kind),
        [0x0f, 0xb9, 0x40, kind, ..] => Some(kind),
        _ => None,
    };
    // The numbers of clang's list of sanitizer handlers.
    match kind {
        Some(3) => "arithmetic: an integer is divided by zero, or its quotient is out of range",
        Some(1) => "unreachable: the kernel comes to a place that it says it never does",
        Some(11) => "no-return: a function ends without the value that it promises",
        Some(18) => "array-bounds: an index is outside of its array",
        Some(20) => "shift: a shift by more bits than there are",
        Some(22) => "misaligned: an address is not aligned as its type wants",
        _ => "trap: an array's bounds, a division, a shift or an alignment is wrong",
    }
}

//! Error codes. HIP took CUDA's numbers for nearly all that both have.

/// No error.
pub(crate) const SUCCESS: u32 = 0;
/// An argument that cannot be: the same in both.
pub(crate) const INVALID_VALUE: u32 = 1;
/// There is no GPU, or no driver of one.
pub(crate) const NO_DEVICE: u32 = 100;

const LAUNCH_FAILURE: u32 = 719;
const UNKNOWN: u32 = 999;

/// Codes that mean the same in both, and have the same number.
const SAME: [u32; 44] = [
    0, 1, 2, 3, 4, 5, 100, 101, 200, 201, 202, 205, 206, 207, 208, 209, 210, 211, 212, 213, 214, 215, 217,
    218, 219, 300, 301, 302, 303, 304, 400, 401, 500, 600, 700, 701, 702, 704, 705, 708, 709, 710, 719, 801,
];

/// HIP's code for one of CUDA's driver.
pub(crate) fn hip(code: u32) -> u32 {
    match code {
        // A capture that went wrong, in as many ways.
        900..=908 => code,
        // What a kernel did that HIP has no code of its own for: a bad stack, instruction, alignment, space or counter.
        714..=718 => LAUNCH_FAILURE,
        code if SAME.contains(&code) => code,
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(cuda: u32, expected: u32) {
        assert_eq!(hip(cuda), expected, "{cuda}");
    }

    #[test]
    fn codes_are_translated() {
        for same in [0, 1, 2, 3, 100, 101, 400, 600, 700, 719, 801, 901] {
            check(same, same);
        }
        check(716, 719);
        check(46, 999);
        check(804, 999);
    }
}

//! Device code: no macro that tells a compiler's idea of the width of a wave, and nothing between lanes without a width.

use crate::rust_source::lines;

/// Files that spell what differs between CUDA and HIP. Only they may use what talks between lanes.
const DIALECTS: [&str; 3] = ["kernels-cuda/dialect.cuh", "kernels-hip/dialect.h", "kernels-hip/matrix.h"];

/// Beginnings of names of macros and builtins that say how wide a wave is, or on which a width would depend. Newer
/// compilers of AMD's define none of the first two.
const WIDTHS: [&str; 6] = [
    "__AMDGCN_WAVEFRONT_SIZE",
    "warpSize",
    "__GFX",
    "__gfx",
    "__AMDGCN_UNSAFE",
    "__builtin_amdgcn_wavefrontsize",
];

/// Beginnings of names of what talks between lanes, or asks which lane this is.
const LANES: [&str; 22] = [
    "__shfl",
    "__ballot",
    "__any",
    "__all",
    "__activemask",
    "__match_",
    "__reduce_",
    "__lane_id",
    "__builtin_amdgcn_ballot",
    "__builtin_amdgcn_update_dpp",
    "__builtin_amdgcn_mov_dpp",
    "__builtin_amdgcn_ds_bpermute",
    "__builtin_amdgcn_ds_permute",
    "__builtin_amdgcn_ds_swizzle",
    "__builtin_amdgcn_permlane",
    "__builtin_amdgcn_read",
    "__builtin_amdgcn_writelane",
    "__builtin_amdgcn_mbcnt",
    "__builtin_amdgcn_wave_reduce",
    "__builtin_amdgcn_mfma",
    "__builtin_amdgcn_wmma",
    "__builtin_amdgcn_uicmp",
];

/// Beginnings of names of those whose last argument is a width, where one is right only with it.
const TAKES_WIDTH: &str = "__shfl";

/// What a file of device code may not hold.
pub(super) fn check(path: &str, text: &str) -> Vec<String> {
    let dialect = DIALECTS.contains(&path);
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(lines(text)) {
        let mut found = |what: String| findings.push(format!("{path}:{number}: {what}"));
        for (at, name) in names(&line.code) {
            let begins = |list: &[&str]| list.iter().any(|begin| name.starts_with(begin));
            if begins(&WIDTHS) {
                found(format!("{name}: the width of a wave is the define LANES, never a compiler's macro"));
            }
            if begins(&LANES) && !dialect {
                found(format!("{name}: what talks between lanes stands in a dialect"));
            }
            if name.starts_with(TAKES_WIDTH) && dialect && last_argument(&line.code[at..]) != Some("LANES") {
                found(format!("{name}: its last argument is not the width LANES"));
            }
        }
    }
    findings
}

/// The names in a line of code, with the places where they begin.
fn names(code: &str) -> Vec<(usize, &str)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut begin = None;
    for (at, c) in code.char_indices().chain([(code.len(), ' ')]) {
        match (begin, is_name(c)) {
            (None, true) => begin = Some(at),
            (Some(from), false) => {
                found.push((from, &code[from..at]));
                begin = None;
            }
            _ => {}
        }
    }
    found
}

/// The last argument of a call that a text begins with, if it ends in that text.
fn last_argument(call: &str) -> Option<&str> {
    let (mut depth, mut from) = (0, 0);
    for (at, c) in call.char_indices() {
        match c {
            '(' => {
                depth += 1;
                from = if depth == 1 { at + 1 } else { from };
            }
            ')' if depth == 1 => return Some(call[from..at].trim()),
            ')' => depth -= 1,
            ',' if depth == 1 => from = at + 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_line(path: &str, line: &str, says: Option<&str>) {
        let found = check(path, line);
        assert_eq!(found.len(), usize::from(says.is_some()), "{line}: {found:?}");
        assert!(says.is_none_or(|says| found[0].contains(says)), "{found:?}");
    }

    #[test]
    fn what_is_forbidden_is_found() {
        const BODY: &str = "kernels-hip/norm.hip";
        const DIALECT: &str = "kernels-hip/dialect.h";
        check_line(BODY, "x += lane_xor(x, mask); // __shfl_xor(x, 1)", None);
        check_line(
            BODY,
            "x += __shfl_xor(x, 1, LANES);",
            Some("norm.hip:1: __shfl_xor: what talks between lanes"),
        );
        check_line(BODY, "u64 m = __ballot(x > 0);", Some("__ballot"));
        check_line(BODY, "__builtin_amdgcn_readlane(x, 3)", Some("__builtin_amdgcn_readlane"));
        check_line("kernels-cuda/norm.cu", "__shfl_sync(~0u, x, 0, 32)", Some("__shfl_sync"));
        check_line(BODY, "#if __AMDGCN_WAVEFRONT_SIZE == 64", Some("the define LANES"));
        check_line(BODY, "#if __AMDGCN_WAVEFRONT_SIZE__ == 64", Some("the define LANES"));
        check_line(DIALECT, "int lanes = warpSize;", Some("warpSize"));
        check_line(DIALECT, "#ifdef __GFX9__", Some("__GFX9__"));
        check_line(DIALECT, "#ifdef __gfx1151__", Some("__gfx1151__"));
        check_line(DIALECT, "return __shfl_xor(x, mask, LANES);", None);
        check_line(DIALECT, "return __shfl(x, f(lane, 1));", Some("its last argument"));
        check_line(DIALECT, "return __shfl(x, lane, 32);", Some("its last argument"));
        check_line(DIALECT, "return __builtin_amdgcn_update_dpp(x, y, 0x111, 0xf, 0xf, false);", None);
    }
}

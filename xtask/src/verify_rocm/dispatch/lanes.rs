//! No literal number of lanes in device code: it runs at 32 lanes and at 64.
//!
//! A line is taken to count lanes if it has a literal of the width of a wave in an operation (`% 32`, `/ 64`, `& 31`, `>> 5`,
//! `* 32`), and speaks of a thread, a lane or a wave. A loop is taken to fold lanes if its literal beginning or bound is 8 or
//! more and the lines after it exchange between lanes by its variable.

use super::Source;
use crate::rust_source::{Line, lines};

/// Operations with a literal of a width.
const WIDTHS: [&str; 9] = ["% 32", "/ 32", "* 32", "% 64", "/ 64", "* 64", "& 31", "& 63", "32 *"];
/// Shifts by the logarithm of a width.
const SHIFTS: [&str; 4] = [">> 5", ">> 6", "<< 5", "<< 6"];
/// Parts of names that speak of lanes.
const SPEAKS: [&str; 6] = ["threadidx", "thread", "lane", "wave", "warp", "tid"];
/// What exchanges between lanes.
const EXCHANGES: [&str; 3] = ["lane_xor", "lane_get", "__shfl"];
/// Lines of a loop that are looked at for an exchange.
const BODY: usize = 4;

/// Files whose lanes are 32 by an assertion, since their instructions are CUDA's: `LANES == 32` must stand in them, or in
/// the header named.
const CUDA_ONLY: [(&str, &str); 5] = [
    ("kernels-cuda/attention_decode.cu", "kernels-cuda/attention_decode.cuh"),
    ("kernels-cuda/attention_decode.cuh", "kernels-cuda/attention_decode.cuh"),
    ("kernels-cuda/attention_mma.cu", "kernels-cuda/attention_mma.cu"),
    // These use CUDA's matrix instructions, whose fragments are of 32 lanes, and no HIP kernel includes them.
    ("kernels-cuda/matmul_mma.cu", ""),
    ("kernels-cuda/matmul_thin.cu", ""),
];

/// Lines that look like it and are not: file, a part of the line, and why.
const ALLOWED: [(&str, &str, &str); 2] = [
    ("kernels-cuda/elementwise.cu", "(args.cols + 31) / 32", "groups of 32 elements, not of lanes"),
    ("kernels-cuda/elementwise.cu", "group * 32 + part * 8", "groups of 32 elements, not of lanes"),
];

/// Literal numbers of lanes in a file.
pub(super) fn check(path: &str, text: &str) -> Vec<String> {
    let lines = lines(text);
    if let Some((_, header)) = CUDA_ONLY.iter().find(|(file, _)| *file == path) {
        let says = !header.is_empty() && *header == path;
        return match says && !text.contains("LANES == 32") {
            true => vec![format!("{path}: it asserts no more that LANES == 32")],
            false => Vec::new(),
        };
    }
    let mut findings = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let place = format!("{path}:{}", at + 1);
        let allowed = ALLOWED.iter().any(|(file, part, _)| *file == path && line.code.contains(part));
        if let Some(width) = literal(&line.code)
            && !allowed
        {
            findings.push(format!("{place}: `{width}` counts lanes by a literal; LANES is their number"));
        }
        if let Some(begin) = fold(&lines[at..]) {
            findings.push(format!("{place}: a fold over lanes begins at {begin}; it begins at LANES / 2"));
        }
    }
    findings
}

/// Lines of the list of those allowed that nothing fits.
pub(super) fn unused(sources: &[Source]) -> Vec<String> {
    let fits = |(file, part, _): &&(&str, &str, &str)| {
        sources.iter().any(|(path, text)| path == file && text.contains(part))
    };
    let line = |(file, part, _): &(&str, &str, &str)| format!("{file}: allowed, and not there: {part}");
    ALLOWED.iter().filter(|row| !fits(row)).map(line).collect()
}

/// The literal by which a line counts lanes.
fn literal(code: &str) -> Option<&'static str> {
    let lower = code.to_lowercase();
    let speaks = SPEAKS.iter().any(|part| lower.contains(part));
    let whole = |pattern: &&&str| {
        code.match_indices(**pattern).any(|(at, _)| {
            let is_name = |c: char| c.is_ascii_alphanumeric() && c != 'u';
            let before = code[..at].ends_with(is_name) && pattern.starts_with(|c: char| c.is_ascii_digit());
            let after =
                code[at + pattern.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() && c != 'u');
            !before && !after
        })
    };
    WIDTHS.iter().chain(&SHIFTS).find(whole).copied().filter(|_| speaks)
}

/// The literal that a loop over lanes begins or ends with, if the first of these lines is the head of one.
fn fold(lines: &[Line]) -> Option<u32> {
    let head = lines.first()?.code.split_once("for (")?.1;
    let mut parts = head.split(';');
    let (begin, bound) = (parts.next()?, parts.next()?);
    let (declared, begin) = begin.split_once('=')?;
    let name = declared.split_whitespace().last()?;
    let number = |text: &str| text.trim().trim_end_matches('u').parse::<u32>().ok();
    let bound = bound.rsplit(['<', '>', '=']).next().and_then(number);
    let literal = number(begin).into_iter().chain(bound).find(|n| *n >= 8)?;
    let exchanges = |line: &Line| {
        EXCHANGES.iter().any(|call| {
            line.code
                .split(call)
                .skip(1)
                .any(|rest| rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|w| w == name))
        })
    };
    lines.iter().take(BODY).any(exchanges).then_some(literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(path: &str, text: &str, says: Option<&str>) {
        let found = check(path, text);
        assert_eq!(found.len(), usize::from(says.is_some()), "{text}: {found:?}");
        assert!(says.is_none_or(|says| found[0].contains(says)), "{found:?}");
    }

    #[test]
    fn gsplat_17_lanes_that_are_counted_by_a_literal_are_found() {
        const FILE: &str = "kernels-hip/norm.hip";
        check_text(FILE, "int lane = threadIdx.x % LANES; u32 word = bits / 32;", Some("`/ 32`"));
        check_text(FILE, "int lane = threadIdx.x % 32;", Some("norm.hip:1: `% 32` counts lanes"));
        check_text(FILE, "int lane = threadIdx.x & 63;", Some("`& 63`"));
        check_text(FILE, "int wave = threadIdx.x >> 5;", Some("`>> 5`"));
        check_text(FILE, "constexpr int THREADS = 32 * WAVES;", Some("`32 *`"));
        check_text(FILE, "int lane = threadIdx.x % LANES;", None);
        check_text(FILE, "int at = bit / 32, shift = bit % 32;", None);
        check_text(FILE, "u32 x = threadIdx.x % 320;", None);
        check_text(FILE, "// lane % 32", None);
    }

    #[test]
    fn folds_that_begin_at_a_literal_are_found() {
        const FILE: &str = "kernels-cuda/common.cuh";
        let fold = |begin: &str| {
            format!("for (int mask = {begin}; mask > 0; mask /= 2)\n    x += lane_xor(x, mask);")
        };
        check_text(FILE, &fold("LANES / 2"), None);
        check_text(FILE, &fold("8"), Some("common.cuh:1: a fold over lanes begins at 8"));
        check_text(FILE, &fold("16u"), Some("begins at 16"));
        check_text(
            FILE,
            "for (int m = 1; m < 32; m *= 2) {\n    x += lane_xor(x, m);\n}",
            Some("begins at 32"),
        );
        check_text(FILE, "for (int m = 1; m < LANES; m *= 2) x += lane_xor(x, m);", None);
        check_text(FILE, "for (int i = 0; i < 16; i++) {\n    x += lane_xor(x, 1);\n}", None);
        check_text(FILE, "for (int i = 0; i < 16; i++) y += x[i];", None);
    }

    #[test]
    fn the_list_of_what_is_allowed_is_held() {
        let (file, part, _) = ALLOWED[0];
        check_text(file, &format!("u32 groups = {part}, part = threadIdx.x % 4;"), None);
        check_text(
            "kernels-cuda/norm.cu",
            &format!("u32 groups = {part}, part = threadIdx.x % 4;"),
            Some("`/ 32`"),
        );
        let sources = |parts: &[&str]| vec![(file.to_owned(), parts.join("\n"))];
        assert_eq!(unused(&sources(&ALLOWED.map(|row| row.1))), Vec::<String>::new());
        assert_eq!(unused(&sources(&[part])).len(), ALLOWED.len() - 1);
        check_text("kernels-cuda/attention_mma.cu", "int lane = threadIdx.x % 32;", Some("asserts no more"));
        check_text("kernels-cuda/attention_mma.cu", "static_assert(LANES == 32); threadIdx.x % 32;", None);
    }
}

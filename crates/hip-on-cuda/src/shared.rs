//! Static shared memory above 48 KiB, which AMD's GPUs have and CUDA's assembler refuses: in PTX it is moved to the dynamic
//! shared memory of a launch, of which a block may have more.

use std::collections::HashMap;

/// The name of the dynamic shared memory that all moves to.
const MOVED: &str = "hip_on_cuda_shared";

/// The first version of PTX that knows compute capability 9.0: an older driver reads it too.
const OLD_VERSION: &str = ".version 8.0";

/// A variable in shared memory: its alignment, its bytes (none of dynamic memory), its name.
fn declared(line: &str) -> Option<(usize, usize, &str)> {
    let line = line
        .trim()
        .trim_start_matches(".extern ")
        .trim_start_matches(".visible ")
        .trim_start_matches(".weak ");
    let mut words = line.strip_prefix(".shared .align ")?.strip_suffix(';')?.split_whitespace();
    let align = words.next()?.parse().ok()?;
    let bits: usize = words.next()?.strip_prefix('.')?.get(1..)?.parse().ok()?;
    let declared = words.next()?;
    let (name, count) = match declared.split_once('[') {
        Some((name, "]")) => (name, 0),
        Some((name, count)) => (name, count.strip_suffix(']')?.parse().ok()?),
        None => (declared, 1),
    };
    Some((align, bits / 8 * count, name))
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$'
}

/// A line whose uses of variables are places in the moved memory.
fn with_places(line: &str, places: &HashMap<&str, usize>) -> String {
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while !rest.is_empty() {
        let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(len);
        rest = tail;
        match places.get(word) {
            Some(&place) => {
                // An offset behind the name is added here: one sum is all that the assembler reads.
                let digits = rest.strip_prefix('+').map(|tail| tail.trim_start_matches('-'));
                let len = digits.map_or(0, |digits| {
                    let sign = rest.len() - digits.len();
                    sign + digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())
                });
                let (offset, tail) = rest.split_at(len);
                rest = tail;
                let offset: i64 = offset.trim_start_matches('+').parse().unwrap_or(0);
                out.push_str(&format!("{MOVED}+{}", place as i64 + offset));
            }
            None => out.push_str(word),
        }
        let len = rest.find(is_word).unwrap_or(rest.len());
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    out
}

/// A text of PTX whose shared memory is all dynamic, and the bytes that a launch must add for what was static.
pub(crate) fn moved(ptx: &str) -> (String, usize) {
    let (mut places, mut bytes, mut dynamic) = (HashMap::new(), 0usize, Vec::new());
    for (align, len, name) in ptx.lines().filter_map(declared) {
        if len == 0 {
            dynamic.push(name);
            continue;
        }
        let place = bytes.next_multiple_of(align);
        places.insert(name, place);
        bytes = place + len;
    }
    let bytes = bytes.next_multiple_of(16);
    places.extend(dynamic.into_iter().map(|name| (name, bytes)));
    let mut out = String::with_capacity(ptx.len() + 1024);
    for line in ptx.lines() {
        if line.starts_with(".version ") && ptx.contains(".target sm_90\n") {
            out.push_str(OLD_VERSION);
        } else if declared(line).is_none() {
            out.push_str(&with_places(line, &places));
        }
        out.push('\n');
        if line.starts_with(".address_size ") {
            out.push_str(&format!(".extern .shared .align 16 .b8 {MOVED}[];\n"));
        }
    }
    (out, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_memory_becomes_dynamic() {
        let ptx = ".version 8.8\n.target sm_90\n.address_size 64\n.extern .shared .align 16 .b8 more[];\n\
                   .shared .align 4 .u32 flag;\n\t.shared .align 16 .b8 _ZZ1kE4keys[24];\n\
                   mov.u32 %r1, _ZZ1kE4keys;\nld.shared.u32 %r2, [_ZZ1kE4keys+8];\nst.shared.u32 [flag], %r2;\n\
                   mov.u64 %rd1, more;\nld.u32 %r3, [more+-4];\nkeys_flag:";
        let (text, bytes) = moved(ptx);
        assert_eq!(bytes, 48);
        let expected = [
            ".version 8.0",
            ".target sm_90",
            ".address_size 64",
            ".extern .shared .align 16 .b8 hip_on_cuda_shared[];",
            "",
            "",
            "",
            "mov.u32 %r1, hip_on_cuda_shared+16;",
            "ld.shared.u32 %r2, [hip_on_cuda_shared+24];",
            "st.shared.u32 [hip_on_cuda_shared+0], %r2;",
            "mov.u64 %rd1, hip_on_cuda_shared+48;",
            "ld.u32 %r3, [hip_on_cuda_shared+44];",
            "keys_flag:",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}

//! The counters in what `portolan generate --profile` prints.

/// What went to the device in a part of a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Uploads {
    /// Tensors through pinned slots.
    pub(super) pinned: u64,
    /// Tensors from pageable memory.
    pub(super) pageable: u64,
    /// Tensors read in place.
    pub(super) direct: u64,
    /// Copies.
    pub(super) copies: u64,
    /// Bytes of weights made resident.
    pub(super) bytes: u64,
}

/// A profile.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Profile {
    /// Before the first token.
    pub(super) load: Uploads,
    /// In the steps.
    pub(super) prefill: Uploads,
    /// Waits of one stream for another.
    pub(super) waits: u64,
    /// Most pinned bytes.
    pub(super) pinned_peak: u64,
}

impl Profile {
    /// Reads a profile; the name of the line that is missing.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let uploads = |key: &str| {
            let rest = line(key).ok_or_else(|| format!("the profile has no line '{key}'"))?;
            match numbers(rest)[..] {
                [pinned, pageable, direct, copies, bytes] => {
                    Ok(Uploads { pinned, pageable, direct, copies, bytes })
                }
                _ => Err(format!("the profile's line '{key}' has not five numbers:{rest}")),
            }
        };
        // A part that moved nothing has no legs.
        let legs: Vec<_> = ["load: legs", "prefill: legs"].into_iter().filter_map(line).collect();
        let after = |word: &str| {
            let number = |leg: &&str| numbers(leg.split_once(word)?.1).first().copied();
            legs.iter().filter_map(number).max().unwrap_or(0)
        };
        Ok(Profile {
            load: uploads("load: uploads")?,
            prefill: uploads("prefill: uploads")?,
            waits: after("cross-stream waits"),
            pinned_peak: after("pinned peak"),
        })
    }
}

/// The whole numbers in a text.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_profile_are_read() {
        let text = "device              H200\n\
            load: uploads       tensors pinned 24, pageable 1, direct 0; 3 copies of 18869248 bytes\n\
            load: legs          read 9 bytes in 4 reads, 9.6 ms over 2 readers, 3.94 GB/s; cross-stream waits 2; \
            pinned peak 67108864 bytes; limit: read\n\
            prefill: uploads    tensors pinned 0, pageable 0, direct 0; 0 copies of 0 bytes\n";
        let load = Uploads { pinned: 24, pageable: 1, direct: 0, copies: 3, bytes: 18_869_248 };
        let expected = Profile { load, prefill: Uploads::default(), waits: 2, pinned_peak: 67_108_864 };
        assert_eq!(Profile::parse(text), Ok(expected));
        for (broken, says) in [("", "'load: uploads'"), ("load: uploads 1\n", "five numbers")] {
            let error = Profile::parse(broken).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}

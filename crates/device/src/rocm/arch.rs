//! The architecture of an AMD GPU, as the runtime names it: `gfx942:sramecc+:xnack-`.

use std::str::FromStr;

/// A name that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{given}' is no name of an AMD architecture: expected gfx and a number, with features such as :xnack-"
)]
pub struct BadArch {
    /// The name as it was given.
    pub given: String,
}

/// An architecture with its features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arch {
    /// Without features: `gfx942`, `gfx1151`.
    pub base: String,
    /// What can be switched, with the switch: `sramecc+`, `xnack-`.
    pub features: Vec<String>,
    /// 9 for GCN 5 and CDNA, 10 for RDNA 1 and 2, 11 for RDNA 3 and 3.5, 12 for RDNA 4.
    pub major: u32,
    /// The second number of the three: 4 of gfx942, 5 of gfx1151.
    pub minor: u32,
    /// The last: 10 of gfx90a.
    pub stepping: u32,
}

impl FromStr for Arch {
    type Err = BadArch;

    /// The number is a decimal major, and one hexadecimal digit each of minor and stepping.
    fn from_str(text: &str) -> Result<Self, BadArch> {
        let bad = || BadArch { given: text.to_owned() };
        let mut parts = text.split(':');
        let base = parts.next().unwrap_or_default();
        let digits: Vec<char> = base.strip_prefix("gfx").ok_or_else(bad)?.chars().collect();
        let [major @ .., minor, stepping] = digits.as_slice() else { return Err(bad()) };
        let lower = |c: &char| c.is_ascii_digit() || ('a'..='f').contains(c);
        if major.is_empty() || !major.iter().all(char::is_ascii_digit) || !lower(minor) || !lower(stepping) {
            return Err(bad());
        }
        let major = major.iter().collect::<String>().parse().map_err(|_| bad())?;
        let features = parts.map(str::to_owned).collect::<Vec<_>>();
        let is_switch = |feature: &String| {
            feature.strip_suffix(['+', '-']).is_some_and(|name| {
                !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            })
        };
        if !features.iter().all(is_switch) {
            return Err(bad());
        }
        Ok(Arch {
            base: base.to_owned(),
            features,
            major,
            minor: minor.to_digit(16).unwrap_or(0),
            stepping: stepping.to_digit(16).unwrap_or(0),
        })
    }
}

impl Arch {
    /// The whole name, as compilers take it: `gfx942:sramecc+:xnack-`.
    pub fn target(&self) -> String {
        let mut target = self.base.clone();
        for feature in &self.features {
            target.push(':');
            target.push_str(feature);
        }
        target
    }

    /// Instructions that kernels ask for by name, from the list of each processor in LLVM's "User Guide for AMDGPU":
    /// `dot4` (four products of bytes, added up), `mfma` (CDNA's matrices), `wmma_gfx11` and `wmma_gfx12` (RDNA's,
    /// whose fragments differ).
    pub fn instructions(&self) -> Vec<&'static str> {
        let number = (self.major, self.minor, self.stepping);
        // gfx908, gfx90a, gfx94x, gfx950.
        let cdna = self.major == 9 && (matches!(number, (9, 0, 8 | 10)) || self.minor >= 4);
        let dot4 = cdna
            || number == (9, 0, 6)
            || matches!(number, (10, 1, 1 | 2))
            || (self.major, self.minor) >= (10, 3);
        let table = [
            (dot4, "dot4"),
            (cdna, "mfma"),
            (self.major == 11, "wmma_gfx11"),
            (self.major == 12 && self.minor == 0, "wmma_gfx12"),
        ];
        table.into_iter().filter(|row| row.0).map(|row| row.1).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, number: (u32, u32, u32), features: &[&str], instructions: &[&str]) {
        let arch: Arch = text.parse().expect("a name");
        assert_eq!((arch.major, arch.minor, arch.stepping), number, "{text}");
        assert_eq!(arch.features, features, "{text}");
        assert_eq!(arch.base, text.split(':').next().unwrap_or_default());
        assert_eq!(arch.target(), text);
        assert_eq!(arch.instructions(), instructions, "{text}");
    }

    #[track_caller]
    fn refuse(text: &str) {
        assert_eq!(text.parse::<Arch>(), Err(BadArch { given: text.to_owned() }));
    }

    #[test]
    fn hip_3877_names_are_taken_apart() {
        check("gfx942:sramecc+:xnack-", (9, 4, 2), &["sramecc+", "xnack-"], &["dot4", "mfma"]);
        check("gfx90a:sramecc+:xnack+", (9, 0, 10), &["sramecc+", "xnack+"], &["dot4", "mfma"]);
        check("gfx908", (9, 0, 8), &[], &["dot4", "mfma"]);
        check("gfx950", (9, 5, 0), &[], &["dot4", "mfma"]);
        check("gfx900:xnack-", (9, 0, 0), &["xnack-"], &[]);
        check("gfx906", (9, 0, 6), &[], &["dot4"]);
        check("gfx90c", (9, 0, 12), &[], &[]);
        check("gfx1010", (10, 1, 0), &[], &[]);
        check("gfx1012", (10, 1, 2), &[], &["dot4"]);
        check("gfx1030", (10, 3, 0), &[], &["dot4"]);
        check("gfx1100", (11, 0, 0), &[], &["dot4", "wmma_gfx11"]);
        check("gfx1151", (11, 5, 1), &[], &["dot4", "wmma_gfx11"]);
        check("gfx1201", (12, 0, 1), &[], &["dot4", "wmma_gfx12"]);
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            "gfx",
            "gfx9",
            "gfx94",
            "gfxa42",
            "sm_90",
            "gfx942:",
            "gfx942:xnack",
            "gfx942:+",
            "gfx942::xnack-",
            "gfx94G",
            "gfx1151\n",
            "gfx11-generic",
            "GFX1151",
            "gfx99999999999942",
            "gfx942:x nack+",
            "gfxé42",
        ] {
            refuse(text);
        }
    }
}

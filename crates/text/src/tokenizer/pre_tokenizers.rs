//! The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`.
//!
//! A pre-tokenizer is a list of regular expressions. Each cuts the pieces that the one before
//! left, at the beginning and end of every match; merges then never cross a cut. The expressions
//! are those of the makers' own `tokenizer.json` files.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior::Isolated;

use crate::TextError;

/// GPT-2's: English contractions, words, numbers, symbols, each with a space before; white space.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Llama 3's: numbers in groups of three digits, line breaks apart.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2's: as Llama 3's, but every digit alone.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 3.5's: combining marks stay with their letters.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Mistral's Tekken: words cut where lower case goes over to upper case.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// o200k's: as Tekken, with contractions and groups of three digits.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// DeepSeek V3's last step.
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// The letters that DeepSeek LLM's tokenizer knows as such, after an optional space.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[",
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}",
    r"\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}",
    r"\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}",
    r"\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}",
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}",
    r"\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}",
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}",
    r"\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}",
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}",
    r"\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}",
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}",
    r"\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}",
    r"\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}",
    r"\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}",
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}",
    r"]+",
);
const DEEPSEEK_MARKS: &str =
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+";
const CJK: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
const CJK_KANA: &str = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
const DIGIT: &str = r"\p{N}";
const THREE_DIGITS: &str = r"\p{N}{1,3}";
const ASCII_TRIPLE: &str = r"[0-9][0-9][0-9]";
const POETRY: &str = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+";

/// A named pre-tokenizer.
pub(crate) struct PreTokenizerSpec {
    names: &'static [&'static str],
    cuts: &'static [&'static str],
    /// A piece that is a token as it stands is taken whole, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// A beginning-of-sequence token is put first, where the file does not say.
    pub(crate) add_bos: bool,
}

const fn spec(names: &'static [&'static str], cuts: &'static [&'static str]) -> PreTokenizerSpec {
    PreTokenizerSpec { names, cuts, ignore_merges: false, add_bos: false }
}

const SPECS: &[PreTokenizerSpec] = &[
    spec(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
        ],
        &[GPT2],
    ),
    PreTokenizerSpec {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        cuts: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    spec(&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], &[LLAMA3]),
    spec(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
            "megrez",
            "solar-open",
            "grok-2",
            "kormo",
            "f2llmv2",
        ],
        &[QWEN2],
    ),
    spec(&["qwen35"], &[QWEN35]),
    spec(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[DIGIT, GPT2],
    ),
    spec(&["deepseek-llm"], &[r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, r"\s+$", CJK, r"\p{N}+"]),
    spec(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, DIGIT]),
    spec(&["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"], &[THREE_DIGITS, CJK_KANA, DEEPSEEK_V3]),
    spec(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, ASCII_TRIPLE]),
    PreTokenizerSpec { names: &["tekken"], cuts: &[TEKKEN], ignore_merges: true, add_bos: true },
    spec(&["gpt-4o", "llama4", "kanana2", "minimax-m2"], &[GPT4O]),
    spec(&["poro-chat", "bloom", "gpt3-finnish"], &[POETRY]),
    spec(&["viking"], &[POETRY, DIGIT]),
    spec(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", ASCII_TRIPLE]),
];

impl PreTokenizerSpec {
    /// Finds a pre-tokenizer by the name in `tokenizer.ggml.pre`.
    ///
    /// # Errors
    /// [`TextError::UnknownPreTokenizer`], with the known names.
    pub(crate) fn find(name: &str) -> Result<&'static Self, TextError> {
        let known = || SPECS.iter().flat_map(|spec| spec.names).copied();
        SPECS.iter().find(|spec| spec.names.contains(&name)).ok_or_else(|| TextError::UnknownPreTokenizer {
            pre: name.to_owned(),
            known: known().collect::<Vec<_>>().join(", "),
        })
    }

    /// The cuts, followed by GPT-2's spelling of bytes as printable characters.
    pub(crate) fn build(&self) -> Result<PreTokenizerWrapper, tokenizers::Error> {
        let mut steps = Vec::with_capacity(self.cuts.len() + 1);
        for cut in self.cuts {
            let pattern = SplitPattern::Regex((*cut).to_owned());
            steps.push(PreTokenizerWrapper::Split(Split::new(pattern, Isolated, false)?));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::tokenizer::{OffsetReferential, OffsetType};
    use tokenizers::{PreTokenizedString, PreTokenizer};

    /// Cuts `text` and compares with `expected`, pieces parted by `|`.
    #[track_caller]
    fn check(name: &str, text: &str, expected: &str) {
        let mut string = PreTokenizedString::from(text);
        PreTokenizerSpec::find(name).unwrap().build().unwrap().pre_tokenize(&mut string).unwrap();
        let splits = string.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let pieces: Vec<&str> = splits.iter().map(|(_, (start, end), _)| &text[*start..*end]).collect();
        assert_eq!(pieces.join("|"), expected);
    }

    #[test]
    fn cuts() {
        check("gpt-2", "Hello  world's 123!", "Hello| | world|'s| 123|!");
        check("llama-bpe", "12345 We'LL\n\nx", "123|45| We|'LL|\n\n|x");
        check("qwen2", "12 (x", "1|2| (|x");
        check("smollm", "a 12", "a| |1|2");
        check("deepseek-llm", "Hi, 你好12", "Hi|,| |你好|12");
        check("deepseek-coder", "Hi, 12", "Hi|,| |1|2");
        check("deepseek-v3", "1234 .foo", "123|4| .|foo");
        check("falcon", "a+1234", "a|+|123|4");
        check("tekken", "camelCase 12", "camel|Case| |1|2");
        check("gpt-4o", "It'S 1234", "It'S| |123|4");
        check("command-r", "x=12", "x|=|1|2");
        check("bloom", "a b.", "a| b|.");
        check("default", "a. 1234", "a|.| |123|4");
    }

    #[test]
    fn every_pre_tokenizer_builds() {
        SPECS.iter().for_each(|spec| drop(spec.build().unwrap()));
    }

    #[test]
    fn unknown_name_is_refused_by_name() {
        let message = PreTokenizerSpec::find("no-such").err().unwrap().to_string();
        assert!(message.contains("\"no-such\"") && message.contains("llama-bpe"), "{message}");
    }
}

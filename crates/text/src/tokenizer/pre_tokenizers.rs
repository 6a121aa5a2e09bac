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
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_MARKS: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";
const CJK: &str = r"[一-龥ࠀ-一가-퟿]+";
const CJK_KANA: &str = r"[一-龥぀-ゟ゠-ヿ]+";
const DIGIT: &str = r"\p{N}";
const THREE_DIGITS: &str = r"\p{N}{1,3}";
const ASCII_TRIPLE: &str = r"[0-9][0-9][0-9]";
const POETRY: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

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
        &["gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4"],
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
        &["qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "solar-open", "grok-2", "kormo", "f2llmv2"],
        &[QWEN2],
    ),
    spec(&["qwen35"], &[QWEN35]),
    spec(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[DIGIT, GPT2],
    ),
    spec(
        &["deepseek-llm"],
        &[r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, r"\s+$", CJK, r"\p{N}+"],
    ),
    spec(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, DIGIT]),
    spec(
        &["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"],
        &[THREE_DIGITS, CJK_KANA, DEEPSEEK_V3],
    ),
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
        SPECS.iter().find(|spec| spec.names.contains(&name)).ok_or_else(|| {
            TextError::UnknownPreTokenizer {
                pre: name.to_owned(),
                known: known().collect::<Vec<_>>().join(", "),
            }
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

use crate::TextError;

/// Finds stop strings in a stream of text pieces, wherever they are split.
///
/// Text that may turn out to be the beginning of a stop string is held back, so a stop string
/// never gets out. Where several stop strings match, the one that is complete first wins, and of
/// those that end at the same place the longest; so the result does not depend on how the text
/// was cut into pieces.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

/// What [`StopMatcher::push`] lets through.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopOutput {
    /// Text that is safe to show.
    pub text: String,
    /// The stop string that was met (its index in the list), after which nothing more comes.
    pub stop: Option<usize>,
}

/// Each piece of text is searched for each stop string, and text as long as one may be held back.
const MOST_STOPS: usize = 1024;
const MOST_STOP_BYTES: usize = 16 << 10;

impl StopMatcher {
    /// A matcher for these stop strings; none at all is allowed.
    ///
    /// # Errors
    /// [`TextError::EmptyStop`] if one of them is empty, [`TextError::TooManyStops`] or [`TextError::StopTooLong`] if
    /// there are more, or longer ones, than a text can be searched for as it comes.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Result<Self, TextError> {
        let stops: Vec<String> = stops.into_iter().map(Into::into).collect();
        if stops.len() > MOST_STOPS {
            return Err(TextError::TooManyStops { count: stops.len(), most: MOST_STOPS });
        }
        for (index, stop) in stops.iter().enumerate() {
            match stop.len() {
                0 => return Err(TextError::EmptyStop { index }),
                1..=MOST_STOP_BYTES => {}
                bytes => return Err(TextError::StopTooLong { index, bytes, most: MOST_STOP_BYTES }),
            }
        }
        Ok(Self { stops, held: String::new(), stopped: false })
    }

    /// Takes the next piece of text. After a stop was met, everything is swallowed.
    pub fn push(&mut self, piece: &str) -> StopOutput {
        if self.stopped {
            return StopOutput::default();
        }
        self.held.push_str(piece);
        if let Some((start, index)) = self.first_stop() {
            self.stopped = true;
            self.held.truncate(start);
            return StopOutput { text: std::mem::take(&mut self.held), stop: Some(index) };
        }
        let keep_from = self.hold_back_from();
        let rest = self.held.split_off(keep_from);
        StopOutput { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Ends the stream and gives what was held back: it was no stop string after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Whether a stop string was met.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Start and index of the stop that is complete first, and of equal ends the longest.
    fn first_stop(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate();
        found
            .filter_map(|(index, stop)| Some((self.held.find(stop)?, stop.len(), index)))
            .min_by_key(|&(start, len, index)| (start + len, start, index))
            .map(|(start, _, index)| (start, index))
    }

    /// Where the longest suffix begins that a stop string could still continue.
    fn hold_back_from(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let earliest = self.held.len().saturating_sub(longest.saturating_sub(1));
        let mut starts = (earliest..self.held.len()).filter(|&at| self.held.is_char_boundary(at));
        starts
            .find(|&at| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..])))
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs `pieces` through a matcher and joins what comes out.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().copied()).unwrap();
        let mut text = String::new();
        let mut stop = None;
        for piece in pieces {
            let out = matcher.push(piece);
            text += &out.text;
            stop = stop.or(out.stop);
        }
        text += &matcher.finish();
        (text, stop)
    }

    #[track_caller]
    fn check(stops: &[&str], pieces: &[&str], text: &str, stop: Option<usize>) {
        assert_eq!(run(stops, pieces), (text.to_owned(), stop));
    }

    #[test]
    fn stops() {
        check(&[], &["a", "b"], "ab", None);
        check(&["END"], &["some E", "ND more"], "some ", Some(0));
        check(&["END"], &["some E", "N"], "some EN", None);
        check(&["END"], &["E", "E", "N", "D"], "E", Some(0));
        check(&["\n\n"], &["a\n", "b\n", "\nc"], "a\nb", Some(0));
        check(&["x", "abc"], &["abc x"], "", Some(1));
        // "b" is complete before "abc" is, in one piece or in three.
        check(&["abc", "b"], &["abc"], "a", Some(1));
        check(&["abc", "b"], &["a", "b", "c"], "a", Some(1));
        // Two that end together: the longer one.
        check(&["b", "ab"], &["ab"], "", Some(1));
        check(&["é", "🦙!"], &["a🦙", "!"], "a", Some(1));
        // Nothing comes after a stop.
        check(&["X"], &["aXb", "c"], "a", Some(0));
        // Stops within stops, and the same one twice: the first in the list is named.
        check(&["aba", "bab"], &["ab", "abab"], "", Some(0));
        check(&["aa", "aa"], &["a", "a"], "", Some(0));
        check(&["\0"], &["a\0b"], "a", Some(0));
    }

    #[test]
    fn holds_back_no_more_than_needed() {
        let mut matcher = StopMatcher::new(["<end>"]).unwrap();
        assert_eq!(matcher.push("abc <e").text, "abc ");
        assert_eq!(matcher.push("gg").text, "<egg");
    }

    #[test]
    fn empty_stop_is_refused() {
        assert!(matches!(StopMatcher::new(["a", ""]), Err(TextError::EmptyStop { index: 1 })));
    }

    #[test]
    fn stops_without_number_or_end_are_refused() {
        let message = |stops: Vec<String>| StopMatcher::new(stops).map(drop).map_err(|e| e.to_string());
        assert_eq!(message(vec!["x".to_owned(); MOST_STOPS]), Ok(()));
        assert_eq!(message(vec!["x".repeat(MOST_STOP_BYTES)]), Ok(()));
        let many = message(vec!["x".to_owned(); 10_000]).unwrap_err();
        assert!(many.contains("10000 stop strings") && many.contains("1024"), "{many}");
        let long = message(vec!["x".to_owned(), "y".repeat(1 << 20)]).unwrap_err();
        assert!(long.contains("stop string 1 has 1048576 bytes") && long.contains("16384"), "{long}");
    }

    /// The longest there may be, all of them nearly met: what is held back is let out again.
    #[test]
    fn many_long_stops_that_are_nearly_met() {
        let stop = |i: usize| format!("{}{i}", "ab".repeat(4000));
        let mut matcher = StopMatcher::new((0..100).map(stop)).unwrap();
        let text = "ab".repeat(4100);
        let mut out: String =
            text.as_bytes().chunks(50).map(|c| matcher.push(std::str::from_utf8(c).unwrap()).text).collect();
        out += &matcher.push("c").text;
        out += &matcher.finish();
        assert_eq!(out, text + "c");
    }

    proptest! {
        /// aprender 2019: stop strings were ignored when streaming and when split over tokens.
        #[test]
        fn aprender_2019_streamed_equals_buffered(
            text in "[abé🦙]{0,24}",
            stops in prop::collection::vec("[abé🦙]{1,6}", 0..5),
            cuts in prop::collection::vec(0usize..96, 0..24),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut cuts: Vec<usize> =
                cuts.into_iter().filter(|&c| c <= text.len() && text.is_char_boundary(c)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let (streamed, stop) = run(&stops, &pieces);
            let (buffered, at_once) = run(&stops, &[&text]);
            prop_assert_eq!((&streamed, stop), (&buffered, at_once));
            // And both are what a search of the whole text says: the stop that is complete first, of those the longest.
            let ends = stops.iter().enumerate().filter_map(|(i, s)| Some((text.find(s)? + s.len(), s.len(), i)));
            let first = ends.min_by_key(|&(end, len, i)| (end, std::cmp::Reverse(len), i));
            prop_assert_eq!(first.map(|(end, len, i)| (&text[..end - len], Some(i))).unwrap_or((&text, None)), (&streamed[..], stop));
            // No stop string gets out, and only a stop shortens the text.
            prop_assert!(stops.iter().all(|s| !streamed.contains(s)));
            match stop {
                None => prop_assert_eq!(&streamed, &text),
                Some(i) => prop_assert!(text.starts_with(&(streamed + stops[i]))),
            }
        }
    }
}

use std::time::{SystemTime, UNIX_EPOCH};

/// The time that templates see through `strftime_now`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// The system's clock, in UTC.
    #[default]
    System,
    /// A fixed time, for output that can be repeated.
    Fixed(LocalTime),
}

impl Clock {
    pub(crate) fn now(self) -> LocalTime {
        match self {
            Self::Fixed(time) => time,
            Self::System => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                LocalTime::from_unix(now.as_secs() as i64)
            }
        }
    }
}

/// A date and time of day, without a time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    days: i64,
    second_of_day: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl LocalTime {
    /// The time `seconds` after 1970-01-01T00:00:00; add the zone's offset for a local time.
    pub fn from_unix(seconds: i64) -> Self {
        let second_of_day = seconds.rem_euclid(86_400) as u32;
        Self { days: seconds.div_euclid(86_400), second_of_day }
    }

    /// Year, month (1 to 12) and day (1 to 31) in the Gregorian calendar.
    ///
    /// Days are counted in years that begin in March, so that the leap day comes last; 400 years
    /// have 146097 days.
    fn date(self) -> (i64, usize, i64) {
        let days = self.days + 719_468;
        let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day_of_year = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        (era * 400 + year + carry, month as usize, day)
    }

    fn day_of_year(self) -> i64 {
        let (year, month, day) = self.date();
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month - 1];
        before + day + i64::from(leap && month > 2)
    }

    /// Formats as C's `strftime` does in the C locale. `%-d` leaves out padding; a directive that
    /// is not known stays as it is written.
    pub(crate) fn format(self, format: &str) -> String {
        let mut out = String::new();
        let mut rest = format;
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at]);
            let directive = &rest[at + 1..];
            let (padded, name) = match directive.strip_prefix('-') {
                Some(name) => (false, name),
                None => (true, directive),
            };
            let Some(c) = name.chars().next() else {
                out.push_str(&rest[at..]);
                return out;
            };
            let after = &name[c.len_utf8()..];
            match self.field(c, padded) {
                Some(text) => out.push_str(&text),
                None => out.push_str(&rest[at..rest.len() - after.len()]),
            }
            rest = after;
        }
        out.push_str(rest);
        out
    }

    fn field(self, name: char, padded: bool) -> Option<String> {
        let (year, month, day) = self.date();
        let (hour, minute) = (self.second_of_day / 3600, self.second_of_day / 60 % 60);
        let second = self.second_of_day % 60;
        let hour12 = (hour + 11) % 12 + 1;
        let weekday = (self.days + 4).rem_euclid(7) as usize;
        let number = |value: i64, width: usize| {
            let width = if padded { width } else { 0 };
            Some(format!("{value:0width$}"))
        };
        match name {
            'Y' => number(year, 1),
            'y' => number(year.rem_euclid(100), 2),
            'm' => number(month as i64, 2),
            'd' => number(day, 2),
            'e' => Some(if padded { format!("{day:2}") } else { day.to_string() }),
            'j' => number(self.day_of_year(), 3),
            'H' => number(hour.into(), 2),
            'I' => number(hour12.into(), 2),
            'M' => number(minute.into(), 2),
            'S' => number(second.into(), 2),
            'f' => Some("000000".to_owned()),
            'p' => Some(if hour < 12 { "AM" } else { "PM" }.to_owned()),
            'B' => Some(MONTHS[month - 1].to_owned()),
            'b' | 'h' => Some(MONTHS[month - 1][..3].to_owned()),
            'A' => Some(WEEKDAYS[weekday].to_owned()),
            'a' => Some(WEEKDAYS[weekday][..3].to_owned()),
            'w' => number(weekday as i64, 1),
            'u' => number((weekday as i64 + 6) % 7 + 1, 1),
            's' => number(self.days * 86_400 + i64::from(self.second_of_day), 1),
            'F' => Some(self.format("%Y-%m-%d")),
            'T' | 'X' => Some(self.format("%H:%M:%S")),
            'R' => Some(self.format("%H:%M")),
            'D' | 'x' => Some(self.format("%m/%d/%y")),
            'c' => Some(self.format("%a %b %e %H:%M:%S %Y")),
            // A time without a zone prints none.
            'Z' | 'z' => Some(String::new()),
            'n' => Some("\n".to_owned()),
            't' => Some("\t".to_owned()),
            '%' => Some("%".to_owned()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(unix: i64, format: &str, expected: &str) {
        assert_eq!(LocalTime::from_unix(unix).format(format), expected);
    }

    #[test]
    fn formats() {
        check(0, "%c", "Thu Jan  1 00:00:00 1970");
        check(1_768_480_200, "%Y-%m-%d %H:%M:%S %j", "2026-01-15 12:30:00 015");
        check(1_768_480_200, "%d %b %Y, %A %-I:%M %p", "15 Jan 2026, Thursday 12:30 PM");
        check(951_782_400, "%F %B %-d %e %-m/%y", "2000-02-29 February 29 29 2/00");
        check(1_735_603_199, "%T %j %a %u", "23:59:59 365 Mon 1");
        check(-1, "%F %T", "1969-12-31 23:59:59");
        check(4_107_542_400, "%F", "2100-03-01");
        check(0, "100%% %Q %-Q % %-", "100% %Q %-Q % %-");
        check(0, "é%", "é%");
    }
}

//! What nobody guesses of an answer, each by a letter: the fuzz target `manager_result` reads answers in which `$` and a letter
//! stand for it.

use serde_json::Value;

/// The texts that an answer and the same answer in another house do not have in common, in the order in which they come.
pub(crate) struct Marks(Vec<(String, String)>);

impl Marks {
    pub(crate) fn of(own: &Value, foreign: &Value) -> Self {
        let mut marks = Self(Vec::new());
        marks.find(own, foreign);
        marks
    }

    fn find(&mut self, own: &Value, foreign: &Value) {
        match (own, foreign) {
            (Value::Object(own), Value::Object(foreign)) => {
                own.values().zip(foreign.values()).for_each(|(own, foreign)| self.find(own, foreign));
            }
            (Value::Array(own), Value::Array(foreign)) => {
                own.iter().zip(foreign).for_each(|(own, foreign)| self.find(own, foreign));
            }
            (Value::String(_), Value::String(_)) if own != foreign => {
                let within_quotes = |text: &Value| {
                    let quoted = text.to_string();
                    quoted[1..quoted.len() - 1].to_owned()
                };
                let pair = (within_quotes(own), within_quotes(foreign));
                if !self.0.contains(&pair) {
                    self.0.push(pair);
                }
            }
            _ => {}
        }
    }

    /// What a letter stands for, as it is between quotes: a small one for the answer's own text, the capital for the foreign one.
    pub(crate) fn text(&self, letter: u8) -> Option<&str> {
        let pair = |first: u8| self.0.get(usize::from(letter - first));
        match letter {
            b'a'..=b'z' => pair(b'a').map(|(own, _)| own.as_str()),
            b'A'..=b'Z' => pair(b'A').map(|(_, foreign)| foreign.as_str()),
            _ => None,
        }
    }
}

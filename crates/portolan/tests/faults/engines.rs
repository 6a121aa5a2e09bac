//! An engine whose device fails while it generates, and another that goes on.

use portolan::{
    Engine, Error, GenerateOptions, Generation, Prompt,
    device::fake::{Call, Fault, FaultKind, Faulty},
    loader::NoProgress,
    weights::LoadMode,
};

use crate::support::{Subject, check_error, faults, may_pass, models, plan, prompt, within};

fn begin(engine: &Engine, salt: u32) -> Generation<'static> {
    let mut options = GenerateOptions::tokens(4);
    options.ignore_eos = true;
    engine.generate(Prompt::Tokens(&prompt(salt)), &options).unwrap()
}

fn end(mut generation: Generation<'_>) -> Result<Vec<u32>, Error> {
    generation.try_for_each(|piece| piece.map(drop))?;
    Ok(generation.tokens().to_vec())
}

/// Two texts at a time, then two more, each once the one before has ended.
#[derive(Debug)]
struct Texts {
    at_once: [Result<Vec<u32>, Error>; 2],
    later: [Result<Vec<u32>, Error>; 2],
}

impl Texts {
    fn of(engine: &Engine) -> Self {
        let both = [begin(engine, 1), begin(engine, 2)];
        let at_once = both.map(end);
        Texts { at_once, later: [1, 2].map(|salt| end(begin(engine, salt))) }
    }

    /// Those of a device without faults: the same later as at once.
    #[track_caller]
    fn whole(self) -> [Vec<u32>; 2] {
        let (at_once, later) = (self.at_once.map(Result::unwrap), self.later.map(Result::unwrap));
        assert_eq!(at_once, later);
        at_once
    }
}

fn engine(subject: &Subject, faulty: Option<&Faulty>, path: &std::path::Path, mode: LoadMode) -> Engine {
    let device = faulty.map_or_else(|| subject.device(), Faulty::device);
    Engine::from_plan(plan(path, &device, mode).unwrap(), &mut NoProgress).unwrap()
}

/// The first error is the device's own. Who only shared its step hears that the step failed.
#[track_caller]
fn check_text(text: &Result<Vec<u32>, Error>, expected: &[u32], kind: FaultKind, what: &str) {
    match text {
        Ok(tokens) => assert_eq!(tokens, expected, "{what}"),
        Err(Error::Stopped { reason }) if kind != FaultKind::Lost => {
            assert!(reason.contains("told to fail"), "{what}: {reason}");
        }
        Err(error) => check_error(error, kind, what),
    }
}

fn each_call_fails(mode: LoadMode) {
    for subject in Subject::all() {
        let (model, path) = models().remove(0);
        let others = Subject::all().remove(0);
        let cpu = engine(&others, None, &path, LoadMode::Eager);
        let cpu_texts = Texts::of(&cpu).whole();
        let clean = subject.faulty();
        let loaded = engine(&subject, Some(&clean), &path, mode);
        let before = Call::ALL.map(|call| clean.calls(call));
        let expected = Texts::of(&loaded).whole();
        let counts = Call::ALL.map(|call| clean.calls(call));
        drop(loaded);
        subject.check_clean(&clean, model);
        for ((call, before), after) in Call::ALL.into_iter().zip(before).zip(counts) {
            for fault in faults(call, after - before) {
                let what = format!("{model} on {}, {mode:?}: {fault:?}", subject.name);
                let faulty = subject.faulty();
                let engine = engine(&subject, Some(&faulty), &path, mode);
                faulty.set(fault);
                let texts = within(&what, move || {
                    let texts = Texts::of(&engine);
                    drop(engine);
                    texts
                });
                let all: Vec<_> = texts.at_once.iter().chain(&texts.later).collect();
                for (text, expected) in all.iter().zip(expected.iter().cycle()) {
                    check_text(text, expected, fault.kind, &what);
                }
                // How many steps two texts share is a matter of luck, so a late call may not come, or at the very end.
                let failed = all.iter().filter(|text| text.is_err()).count();
                if fault.kind == FaultKind::Lost {
                    let first = all.iter().position(|text| text.is_err()).unwrap_or(all.len());
                    let from = first.max(2);
                    assert!(
                        all[from..].iter().all(|t| t.is_err() || first == all.len()),
                        "{what}: it goes on: {texts:?}"
                    );
                }
                assert!(failed > 0 || may_pass(fault) || fault.nth > 0, "{what}: was not noticed");
                assert!(
                    failed <= 2 || fault.kind == FaultKind::Lost,
                    "{what}: one fault ends more than a step"
                );
                subject.check_clean(&faulty, &what);
            }
            // Others, on the CPU and on the same device, go on.
            assert_eq!(Texts::of(&cpu).whole(), cpu_texts, "{model} on the CPU, after {call:?}");
            assert_eq!(
                Texts::of(&engine(&subject, None, &path, mode)).whole(),
                expected,
                "{model}, after {call:?}"
            );
        }
    }
}

#[test]
fn each_call_fails_while_texts_are_generated() {
    each_call_fails(LoadMode::Eager);
}

#[test]
fn each_call_fails_while_weights_come_with_the_first_text() {
    each_call_fails(LoadMode::Lazy);
}

/// The engine says so at once, to everybody and for ever, and does not ask the device again.
#[test]
fn a_lost_device_is_not_asked_again() {
    for subject in Subject::all() {
        let (_, path) = models().remove(0);
        let faulty = subject.faulty();
        let engine = engine(&subject, Some(&faulty), &path, LoadMode::Eager);
        faulty.set(Fault { call: Call::Upload, nth: 1, kind: FaultKind::Lost });
        let what = subject.name;
        let (engine, first) = within(what, move || {
            let texts = Texts::of(&engine);
            (engine, texts)
        });
        let errors = first.at_once.into_iter().chain(first.later).map(Result::unwrap_err);
        errors.for_each(|error| check_error(&error, FaultKind::Lost, what));
        let calls = Call::ALL.map(|call| faulty.calls(call));
        within(what, move || {
            check_error(&end(begin(&engine, 3)).unwrap_err(), FaultKind::Lost, what);
            let mut session = engine.session();
            let options = GenerateOptions::tokens(2);
            let text = session.generate(Prompt::Tokens(&prompt(4)), &options).and_then(end);
            check_error(&text.unwrap_err(), FaultKind::Lost, what);
            assert_eq!(Call::ALL.map(|call| faulty.calls(call)), calls, "{what}: it was asked again");
            drop((session, engine));
            subject.check_clean(&faulty, what);
        });
    }
}

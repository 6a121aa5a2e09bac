//! A core on a failing device: load, prefill, fork, decode.

use std::{collections::BTreeSet, path::Path};

use portolan::{
    Core, Error, SeqStep, Want,
    device::{
        Device,
        fake::{Call, Fault, FaultKind},
    },
    kernels::PAGE_TOKENS,
    weights::LoadMode,
};

use crate::support::{Subject, argmax, check_error, faults, may_pass, models, plan, prompt, within};

/// Tokens of two sequences, and the errors that a second try went over.
#[derive(Debug, Default)]
struct Run {
    tokens: Vec<u32>,
    errors: Vec<Error>,
}

impl Run {
    /// A step, tried again after an error that leaves the device: the sequences are as before.
    fn step(&mut self, core: &mut Core, batch: &[SeqStep<'_>]) -> Result<(), Error> {
        match core.step(batch) {
            Ok(_) => return Ok(()),
            Err(lost) if lost.device_lost().is_some() => {
                let again = core.step(batch).map(drop).unwrap_err();
                assert!(again.device_lost().is_some(), "a lost device goes on: {again}");
                return Err(lost);
            }
            Err(error) => self.errors.push(error),
        }
        core.step(batch).map(drop)
    }

    fn of(path: &Path, device: &Device, mode: LoadMode) -> Result<Self, Error> {
        let mut core = Core::load(&plan(path, device, mode)?, &mut |_, _| ())?;
        let mut run = Run::default();
        let (prompt, a) = (prompt(1), core.create());
        let (head, tail) = prompt.split_at(25);
        run.step(&mut core, &[SeqStep { seq: a, tokens: head, want: Want::None }])?;
        run.step(&mut core, &[SeqStep { seq: a, tokens: tail, want: Want::Last }])?;
        run.tokens.push(argmax(core.logits(0)));
        // Both share a page that is partly filled: the first to write copies it.
        let b = core.fork(a)?;
        let mut next = [run.tokens[0], 7];
        for _ in 0..3 {
            let [first, second] = &next;
            let step = |seq, token| SeqStep { seq, tokens: std::slice::from_ref(token), want: Want::Last };
            run.step(&mut core, &[step(a, first), step(b, second)])?;
            next = [argmax(core.logits(0)), argmax(core.logits(1))];
            run.tokens.extend(next);
        }
        core.remove(a);
        core.discard(b);
        core.clear_prefixes();
        let (free, _, total) = core.pages();
        assert_eq!(free, total, "pages are lost");
        Ok(run)
    }
}

fn each_call_fails(mode: LoadMode) {
    for subject in Subject::all() {
        for (model, path) in models() {
            let clean = subject.faulty();
            let expected = Run::of(&path, &clean.device(), mode).unwrap().tokens;
            subject.check_clean(&clean, model);
            for call in Call::ALL {
                for fault in faults(call, clean.calls(call)) {
                    let what = format!("{model} on {}, {mode:?}: {fault:?}", subject.name);
                    let faulty = subject.faulty();
                    faulty.set(fault);
                    let (device, path) = (faulty.device(), path.clone());
                    let outcome = within(&what, move || Run::of(&path, &device, mode));
                    assert!(faulty.fired(), "{what}: did not come");
                    match outcome {
                        Ok(run) => {
                            assert_eq!(run.tokens, expected, "{what}");
                            run.errors.iter().for_each(|error| check_error(error, fault.kind, &what));
                            assert!(!run.errors.is_empty() || may_pass(fault), "{what}: was not noticed");
                        }
                        Err(error) => check_error(&error, fault.kind, &what),
                    }
                    subject.check_clean(&faulty, &what);
                }
                let fresh = Run::of(&path, &subject.device(), mode).unwrap();
                assert_eq!(
                    (fresh.tokens.as_slice(), fresh.errors.len()),
                    (expected.as_slice(), 0),
                    "{model}, after {call:?}"
                );
            }
        }
    }
}

#[test]
fn each_call_fails_with_weights_loaded_at_once() {
    each_call_fails(LoadMode::Eager);
}

#[test]
fn each_call_fails_with_weights_loaded_at_their_first_use() {
    each_call_fails(LoadMode::Lazy);
}

/// What the memory was for, as far as a single refusal is an error.
#[test]
fn out_of_memory_says_what_for() {
    for subject in Subject::all() {
        let (_, path) = models().remove(0);
        let clean = subject.faulty();
        drop(Core::load(&plan(&path, &clean.device(), LoadMode::Eager).unwrap(), &mut |_, _| ()).unwrap());
        let mut parts = BTreeSet::new();
        for call in [Call::Alloc, Call::Pin] {
            for nth in 0..clean.calls(call) {
                let faulty = subject.faulty();
                let plan = plan(&path, &faulty.device(), LoadMode::Eager).unwrap();
                faulty.set(Fault { call, nth, kind: FaultKind::OutOfMemory });
                match Core::load(&plan, &mut |_, _| ()).map(drop) {
                    Ok(()) => {}
                    Err(Error::NoRoomFor { part, .. }) => drop(parts.insert(part)),
                    Err(other) => panic!("{call:?} number {nth}: {other:?}"),
                }
                drop(plan);
                subject.check_clean(&faulty, "out of memory");
            }
        }
        let mut expected = vec!["the cache", "the logits on the host", "the step buffers", "the workspace"];
        if !subject.is_cpu() {
            expected.insert(1, "the kernels' scratch");
        }
        assert_eq!(parts.into_iter().collect::<Vec<_>>(), expected, "{}", subject.name);
    }
}

/// A step that failed at the border of a page had taken the next one already. Two that go on from there, each alone,
/// must not both write to it.
#[test]
fn a_fork_after_a_failed_step() {
    let texts = |subject: &Subject, fail: bool| {
        let faulty = subject.faulty();
        let (_, path) = models().remove(0);
        let mut core =
            Core::load(&plan(&path, &faulty.device(), LoadMode::Eager).unwrap(), &mut |_, _| ()).unwrap();
        let a = core.create();
        core.step(&[SeqStep { seq: a, tokens: &prompt(1)[..PAGE_TOKENS], want: Want::Last }]).unwrap();
        let free = core.pages().0;
        if fail {
            faulty.set(Fault { call: Call::Upload, nth: 0, kind: FaultKind::Failed });
            core.step(&[SeqStep { seq: a, tokens: &[5], want: Want::Last }]).unwrap_err();
        }
        assert_eq!(core.pages().0, free, "a failed step keeps pages");
        let b = core.fork(a).unwrap();
        let mut logits = Vec::new();
        for tokens in [[5, 9], [6, 8], [7, 7]] {
            for (seq, token) in [a, b].into_iter().zip(tokens) {
                core.step(&[SeqStep { seq, tokens: &[token], want: Want::Last }]).unwrap();
                logits.push(core.logits(0).to_vec());
            }
        }
        logits
    };
    for subject in Subject::all() {
        assert!(texts(&subject, true) == texts(&subject, false), "{}", subject.name);
    }
}

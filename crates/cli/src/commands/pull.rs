//! `portolan pull`: a model into the cache.

use portolan::loader;

use crate::{args::PullArgs, output, progress::Bars};

pub(crate) fn run(args: PullArgs) -> anyhow::Result<()> {
    let path = loader::find(&args.name, &mut Bars::new())?;
    output::print_now(&format!("{}\n", path.display()))
}

//! Caches: pages, who owns them, and which prefixes they hold.

mod layout;
mod pages;
mod prefix;
mod sequence;

pub(crate) use layout::{CacheLayout, Caches};
pub(crate) use pages::{PageId, PagePool};
pub(crate) use prefix::PrefixIndex;
pub(crate) use sequence::Sequence;

//! How large a staging ring is.

use crate::{
    Result,
    env::{BadVariable, switch},
};

/// The size of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingOptions {
    /// Bytes of a slot; a multiple of 256 at least that large is taken.
    pub slot_bytes: usize,
    /// Most slots.
    pub slots: usize,
    /// Whether memory is pinned. Without, the path is the synchronous one from pageable memory.
    pub pinned: bool,
}

impl Default for StagingOptions {
    fn default() -> Self {
        StagingOptions { slot_bytes: Self::SLOT_BYTES, slots: Self::SLOTS, pinned: true }
    }
}

impl StagingOptions {
    /// Bytes of a slot.
    pub const SLOT_BYTES: usize = 64 << 20;
    /// Slots of a device: with [`StagingOptions::SLOT_BYTES`], at most 256 MiB are pinned.
    pub const SLOTS: usize = 4;
    /// A slot that cannot be pinned is halved, but not below this.
    pub const LEAST_SLOT_BYTES: usize = 1 << 20;

    /// As by default, but for `PORTOLAN_PINNED_LOAD`.
    ///
    /// # Errors
    /// When the variable is set to something that is no switch.
    pub fn from_env() -> Result<Self, BadVariable> {
        let pinned = switch("PORTOLAN_PINNED_LOAD")?.unwrap_or(true);
        Ok(StagingOptions { pinned, ..Self::default() })
    }

    /// The smallest size that a slot may come to have.
    pub fn floor(&self) -> usize {
        self.slot_len().min(Self::LEAST_SLOT_BYTES)
    }

    /// Host memory that a load of `need` bytes takes for staging.
    pub fn bytes_for(&self, need: u64) -> u64 {
        let this = self.for_need(need);
        let slots = if this.pinned { this.slots.max(1) as u64 } else { 1 };
        let used = need.div_ceil(this.slot_len() as u64).min(slots);
        used * this.slot_len() as u64
    }

    /// With a slot no larger than a load of `need` bytes wants.
    #[must_use]
    pub fn for_need(mut self, need: u64) -> Self {
        let wanted = usize::try_from(need).unwrap_or(usize::MAX);
        let wanted = wanted.checked_next_multiple_of(Self::LEAST_SLOT_BYTES).unwrap_or(usize::MAX);
        self.slot_bytes = self.slot_bytes.min(wanted.max(Self::LEAST_SLOT_BYTES));
        self
    }

    pub(super) fn slot_len(&self) -> usize {
        self.slot_bytes.max(1).checked_next_multiple_of(256).unwrap_or(Self::SLOT_BYTES)
    }
}

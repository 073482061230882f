//! One immutable value that is exchanged as a whole: who looks at it has all of the one or all of the
//! next, and waits for nobody but for the copying of a pointer.

use std::sync::{Arc, PoisonError, RwLock};

/// A value that readers share and that is replaced as a whole.
#[derive(Debug, Default)]
pub struct Swappable<T>(RwLock<Arc<T>>);

impl<T> Swappable<T> {
    /// A cell that holds this value.
    pub fn new(value: impl Into<Arc<T>>) -> Self {
        Self(RwLock::new(value.into()))
    }

    /// As it is now; what is exchanged later is not seen through this.
    pub fn get(&self) -> Arc<T> {
        // A panic elsewhere leaves the one value or the other.
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on it is this.
    pub fn set(&self, value: impl Into<Arc<T>>) {
        let value = value.into();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = value;
    }

    /// From now on it is what `change` makes of it; nobody else's change is lost.
    pub fn update(&self, change: impl FnOnce(&T) -> T) {
        let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&held);
        *held = Arc::new(changed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_the_old_one_keeps_it_and_no_change_is_lost() {
        let value = Swappable::new(0_u32);
        let old = value.get();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| value.update(|number| number + 1)));
            }
        });
        assert_eq!((*old, *value.get()), (0, 400));
        value.set(7);
        assert_eq!(*value.get(), 7);
    }
}

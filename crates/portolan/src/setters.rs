//! Methods of options that set one field each.

/// Generates a method for each listed field, with the type of its argument.
macro_rules! setters {
    ($name:ident { $($field:ident: $type:ty,)+ }) => {
        impl $name {
            $(
                #[doc = concat!("Sets [`", stringify!($name), "::", stringify!($field), "`].")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field.into();
                    self
                }
            )+
        }
    };
}

pub(crate) use setters;

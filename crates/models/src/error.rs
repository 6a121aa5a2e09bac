use std::path::PathBuf;

/// What can be wrong with a model's configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// No family has this name.
    #[error(
        "{}: the model type '{model_type}' is not supported. Supported: {known}", path.display()
    )]
    UnknownFamily {
        /// The checkpoint.
        path: PathBuf,
        /// As the configuration says.
        model_type: String,
        /// What is.
        known: String,
    },
    /// The checkpoint has no configuration.
    #[error("{}: no config.json beside the weights. Put the model's config.json into the same folder", path.display())]
    NoConfig {
        /// The checkpoint.
        path: PathBuf,
    },
    /// A field is missing.
    #[error("{}: the configuration lacks '{field}'", path.display())]
    MissingField {
        /// The checkpoint.
        path: PathBuf,
        /// The field.
        field: String,
    },
    /// A field cannot be used.
    #[error("{}: configuration field '{field}' is {found}, expected {expected}", path.display())]
    BadField {
        /// The checkpoint.
        path: PathBuf,
        /// The field.
        field: String,
        /// What it holds.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// The rope scaling is none that is known.
    #[error("{}: the rope scaling '{kind}' is not supported. Supported: default, linear, dynamic, yarn, llama3", path.display())]
    UnknownRope {
        /// The checkpoint.
        path: PathBuf,
        /// As the configuration says.
        kind: String,
    },
    /// There is neither an output matrix nor a word that the embedding serves as one.
    #[error(
        "{}: there is no output matrix (lm_head.weight), and tie_word_embeddings is not true. \
         Download the checkpoint again, or set \"tie_word_embeddings\": true in config.json if it really is tied",
        path.display()
    )]
    NoOutputMatrix {
        /// The checkpoint.
        path: PathBuf,
    },
    /// A file could not be read.
    #[error(transparent)]
    Weights(#[from] portolan_weights::WeightError),
}

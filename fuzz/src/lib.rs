//! Fuzz targets that run on stable.

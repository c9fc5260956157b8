//! Handlers mounted below a prefix.

use std::cmp::Ordering;

use crate::Handler;

/// A handler and its prefix.
pub(crate) struct Mount {
    segments: Vec<Segment>,
    pub(super) handler: Box<dyn Handler>,
}

/// A segment of a prefix. Text sorts before parameters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Segment {
    Text(Box<str>),
    /// Matches any segment except an empty one, `.` and `..`.
    Parameter(Box<str>),
}

impl Mount {
    pub(super) fn new(prefix: &str, handler: Box<dyn Handler>) -> Result<Mount, &'static str> {
        let prefix = prefix.strip_prefix('/').ok_or("a prefix must begin with a slash")?;
        if prefix.is_empty() {
            return Ok(Mount { segments: Vec::new(), handler });
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let segments = prefix.split('/').map(Segment::parse).collect::<Result<Vec<Segment>, _>>()?;
        let names: Vec<&str> = segments.iter().filter_map(Segment::name).collect();
        if names.iter().enumerate().any(|(at, name)| names[..at].contains(name)) {
            return Err("two parameters of a prefix have the same name");
        }
        Ok(Mount { segments, handler })
    }

    /// The part of a path, as sent, that the prefix matches.
    pub(super) fn prefix_of<'p>(&self, path: &'p str) -> &'p str {
        match memchr::memchr_iter(b'/', path.as_bytes()).nth(self.segments.len()) {
            Some(end) => &path[..end],
            None => path,
        }
    }

    /// Whether a path is below the prefix.
    pub(super) fn has(&self, path: &str) -> bool {
        // Skip the empty text before the first slash.
        let mut segments = path.split('/').skip(1);
        self.segments.iter().all(|own| segments.next().is_some_and(|segment| own.matches(segment)))
    }

    /// The values of the prefix's parameters in a path below it.
    pub(crate) fn parameters<'a>(&'a self, path: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let both = self.segments.iter().zip(path.split('/').skip(1));
        both.filter_map(|(own, value)| Some((own.name()?, value)))
    }

    /// Orders mounts by precedence: the first segment that differs decides, otherwise the longer prefix comes first. Parameter
    /// names make no difference.
    pub(super) fn cmp_specific(&self, other: &Mount) -> Ordering {
        let segments = self.segments.iter().zip(&other.segments).map(|(one, other)| one.cmp_specific(other));
        segments.fold(Ordering::Equal, Ordering::then).then(other.segments.len().cmp(&self.segments.len()))
    }

    /// Orders a mount and a route that match the same path. If no segment differs, the route comes first.
    pub(super) fn cmp_route(&self, pattern: &str) -> Ordering {
        for (own, segment) in self.segments.iter().zip(pattern.split('/').skip(1)) {
            let is_text = !segment.replace("{{", "").contains('{');
            match own {
                Segment::Text(_) if !is_text => return Ordering::Less,
                Segment::Parameter(_) if is_text => return Ordering::Greater,
                // A catch-all parameter.
                Segment::Parameter(_) if segment.starts_with("{*") => return Ordering::Less,
                _ => {}
            }
        }
        Ordering::Greater
    }
}

impl Segment {
    fn parse(text: &str) -> Result<Segment, &'static str> {
        if matches!(text, "" | "." | "..") {
            return Err("a prefix must not have empty segments, . or ..");
        }
        if let Some(name) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'))
            && !name.contains(['{', '}'])
        {
            return match name {
                "" => Err("a parameter must have a name"),
                _ if name.starts_with('*') => Err("a prefix cannot have a catch-all parameter"),
                _ => Ok(Segment::Parameter(name.into())),
            };
        }
        // As in routes, literal braces are doubled.
        let unescaped = text.replace("{{", "").replace("}}", "");
        if unescaped.contains(['{', '}']) {
            return Err("a segment of a prefix must be either text or one parameter");
        }
        Ok(Segment::Text(text.replace("{{", "{").replace("}}", "}").into()))
    }

    fn name(&self) -> Option<&str> {
        match self {
            Segment::Text(_) => None,
            Segment::Parameter(name) => Some(name),
        }
    }

    fn matches(&self, segment: &str) -> bool {
        match self {
            Segment::Text(text) => **text == *segment,
            Segment::Parameter(_) => !matches!(segment, "" | "." | ".."),
        }
    }

    fn cmp_specific(&self, other: &Segment) -> Ordering {
        match (self, other) {
            (Segment::Parameter(_), Segment::Parameter(_)) => Ordering::Equal,
            _ => self.cmp(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain;

    fn mount(prefix: &str) -> Mount {
        Mount::new(prefix, Box::new(plain(|_| ""))).unwrap_or_else(|why| panic!("{prefix}: {why}"))
    }

    #[test]
    fn prefixes_match_whole_segments() {
        for (prefix, below, not) in [
            ("/", vec!["/", "/a", "/a/b", "//", "//a"], vec![]),
            ("/a", vec!["/a", "/a/", "/a/b", "/a//", "/a/../b"], vec!["/", "/ab", "/b", "//a", "/b/a", "/A"]),
            ("/a/", vec!["/a", "/a/", "/a/b"], vec!["/ab"]),
            ("/a/{b}", vec!["/a/x", "/a/x/", "/a/x/y"], vec!["/a", "/a/", "/a//", "/a//x", "/b/x", "/a/..", "/a/./x"]),
            ("/{{a}}", vec!["/{a}", "/{a}/b"], vec!["/a", "/{{a}}"]),
        ] {
            let mount = mount(prefix);
            for path in below {
                assert!(mount.has(path), "{path} is below {prefix}");
            }
            for path in not {
                assert!(!mount.has(path), "{path} is not below {prefix}");
            }
        }
    }

    #[test]
    fn prefix_and_parameters_are_taken_from_the_path() {
        for (prefix, path, expected) in [
            ("/", "/a", ""),
            ("/a", "/a", "/a"),
            ("/a", "/a/", "/a"),
            ("/a", "/%61/b", "/%61"),
            ("/a/{b}", "/a/x%2Fy/z", "/a/x%2Fy"),
            ("/a", "/a//b", "/a"),
        ] {
            assert_eq!(mount(prefix).prefix_of(path), expected, "{path} below {prefix}");
        }
        let mount = mount("/{a}/b/{c}");
        assert_eq!(mount.parameters("/1/b/2/3").collect::<Vec<_>>(), [("a", "1"), ("c", "2")]);
    }

    #[test]
    fn more_specific_mounts_come_first() {
        let mut mounts = ["/", "/{a}", "/a/{b}", "/a", "/a/b", "/{a}/b", "/b"].map(mount);
        mounts.sort_by(Mount::cmp_specific);
        let first = |path: &str| {
            let found = mounts.iter().find(|mount| mount.has(path)).unwrap();
            found.segments.iter().map(|segment| format!("/{}", segment.name().unwrap_or("text"))).collect::<String>()
        };
        for (path, expected) in [
            ("/", ""),
            ("/a", "/text"),
            ("/a/b", "/text/text"),
            ("/a/c", "/text/b"),
            ("/b/b", "/text"),
            ("/c", "/a"),
            ("/c/b", "/a/text"),
            ("/c/d", "/a"),
        ] {
            assert_eq!(first(path), expected, "{path}");
        }
    }

    #[test]
    fn routes_and_mounts_are_compared_segment_by_segment() {
        for (prefix, pattern, route_first) in [
            ("/a", "/{x}", false),
            ("/a", "/a/{x}", true),
            ("/a", "/a/{*x}", true),
            ("/a", "/{x}/b", false),
            ("/", "/{x}", true),
            ("/", "/{*x}", true),
            ("/{y}", "/a/{x}", true),
            ("/{y}", "/{x}", true),
            ("/{y}", "/{*x}", false),
            ("/{y}/b", "/{x}/{z}", false),
            ("/a", "/{*x}", false),
            ("/a/b", "/a/{*x}", false),
            ("/{y}", "/{{b}}/{x}", true),
        ] {
            let order = mount(prefix).cmp_route(pattern);
            assert_eq!(order == Ordering::Greater, route_first, "{prefix} and {pattern}");
        }
    }

    #[test]
    fn bad_prefixes_are_refused() {
        for prefix in
            ["", "a", "//", "/a//b", "/a/../b", "/.", "/{*a}", "/a/{*b}", "/{}", "/{a", "/a}", "/x{a}", "/{a}/{a}"]
        {
            assert!(Mount::new(prefix, Box::new(plain(|_| ""))).is_err(), "{prefix}");
        }
    }
}

//! Mounted handlers: which paths they see, and which handler answers.

mod common;

use std::time::Duration;

use common::tree::{Tree, settled};
use common::{On, Serve, Site, field, on_every_engine, statuses};
use pelton::Reactor;
use pelton_http::{FileSettings, Files, Handler, Request, Responder, Response, Router, plain, spawned};

on_every_engine![
    mounted_handlers_see_the_rest_of_the_path,
    nested_routers_see_all_parameters,
    most_specific_handler_answers,
    mounted_handlers_answer_unknown_methods_and_paths,
    files_below_prefixes,
    no_spelling_bypasses_a_mount,
];

/// Answers with the paths that it sees.
fn echo(name: &'static str) -> impl Handler {
    plain(move |request| format!("{name} {} {} {}", request.prefix(), request.path(), request.full_path()))
}

fn ask(site: &mut Site, method: &str, target: &str) -> (u16, String, String) {
    let (head, body) = site.request(method, target, &[]);
    (statuses(&head)[0], head, String::from_utf8(body).unwrap())
}

fn body(site: &mut Site, target: &str) -> String {
    ask(site, "GET", target).2
}

fn mounted_handlers_see_the_rest_of_the_path(on: On) {
    let mut site = on.serve(Router::new().mount("/api", echo("api")).mount("/deep/er/", echo("deeper")));
    for (target, expected) in [
        ("/api", "api /api / /api"),
        ("/api/", "api /api / /api/"),
        ("/api?a=/b", "api /api / /api"),
        ("/api/users/7?x", "api /api /users/7 /api/users/7"),
        ("/api//x", "api /api //x /api//x"),
        ("/api/../x", "api /api /../x /api/../x"),
        ("/api/%2e%2e/a%2Fb", "api /api /%2e%2e/a%2Fb /api/%2e%2e/a%2Fb"),
        ("http://a/api/x", "api /api /x /api/x"),
        ("http://a/api", "api /api / /api"),
        ("/deep/er", "deeper /deep/er / /deep/er"),
        ("/deep/er/x/", "deeper /deep/er /x/ /deep/er/x/"),
    ] {
        assert_eq!(body(&mut site, target), expected, "{target}");
    }
    for target in [
        "/",
        "/apis",
        "/api%2Fx",
        "/ap",
        "//api",
        "/x/api",
        "/x/../api",
        "/deep",
        "/deep/",
        "/deep/erx",
        "/API",
        "http://a",
    ] {
        assert_eq!(ask(&mut site, "GET", target).0, 404, "{target}");
    }
}

fn nested_routers_see_all_parameters(on: On) {
    let say = |request: &Request<'_>| {
        let all =
            ["team", "user", "id", "rest", "none"].map(|name| request.parameter(name).unwrap_or_default().into_owned());
        format!("{} {}", all.join(","), request.path())
    };
    // A handler that answers later has a copy of the request.
    let later = spawned(move |request, _| {
        let answer = Response::text(say(&request.get()));
        async move { answer }
    });
    let inner = Router::new()
        .get("/", plain(say))
        .get("/{id}", plain(say))
        .get("/later/{id}", later)
        .get("/files/{*rest}", plain(say));
    let users = Router::new().mount("/users/{user}", inner);
    let mut site = on.serve(Router::new().mount("/{team}", users));
    for (target, expected) in [
        ("/red/users/ann", "red,ann,,, /"),
        ("/red/users/ann/", "red,ann,,, /"),
        ("/red/users/ann/7", "red,ann,7,, /7"),
        ("/red/users/a%20b%2fc/%37", "red,a b/c,7,, /%37"),
        ("/red/users/ann/later/8", "red,ann,8,, /later/8"),
        ("/r%65d/users/ann/files/a/b", "red,ann,,a/b, /files/a/b"),
    ] {
        assert_eq!(body(&mut site, target), expected, "{target}");
    }
    for target in ["/red/users", "/red/users/", "/red", "//users/ann", "/../users/ann", "/red/users/ann/7/8"] {
        assert_eq!(ask(&mut site, "GET", target).0, 404, "{target}");
    }
    // If both define the same name, the inner one wins.
    let inner = Router::new().get("/{id}", plain(|request| request.parameter("id").unwrap_or_default().into_owned()));
    let mut site = on.serve(Router::new().mount("/{id}", inner));
    assert_eq!(body(&mut site, "/outer/inner"), "inner");
}

fn most_specific_handler_answers(on: On) {
    let router = Router::new()
        .mount("/", echo("root"))
        .mount("/a", echo("a"))
        .mount("/a/b", echo("ab"))
        .mount("/{x}/c", echo("xc"))
        .get("/a/b/exact", echo("exact"))
        .get("/a/{id}", echo("id"))
        .get("/{page}", echo("page"))
        .fallback(echo("fallback"));
    let mut site = on.serve(router);
    for (target, expected) in [
        ("/", "root"),
        ("/a", "a"),
        ("/a/", "a"),
        ("/a/b", "ab"),
        ("/a/bc/d", "a"),
        ("/a/b/c", "ab"),
        ("/a/b/exact", "exact"),
        ("/a/b/exact/", "ab"),
        ("/a/7", "id"),
        ("/a/7/8", "a"),
        ("/z/c/d", "xc"),
        ("/z/d", "root"),
        ("/z", "page"),
        ("/z/", "root"),
    ] {
        let answer = body(&mut site, target);
        assert_eq!(answer.split(' ').next(), Some(expected), "{target}: {answer}");
    }
}

fn mounted_handlers_answer_unknown_methods_and_paths(on: On) {
    let inner = Router::new().get("/x", echo("inner")).post("/y", echo("inner"));
    let router = Router::new()
        .mount("/in", inner)
        .mount("/any", echo("any"))
        .get("/in/own", echo("own"))
        .fallback(plain(|_| Response::new(418)));
    let mut site = on.serve(router);
    let said = |(status, head, _): (u16, String, String)| (status, field(&head, "Allow").map(str::to_owned));
    for (method, target, status, allow) in [
        ("GET", "/in/x", 200, None),
        ("HEAD", "/in/x", 200, None),
        ("POST", "/in/x", 405, Some("GET, HEAD, OPTIONS")),
        ("OPTIONS", "/in/y", 204, Some("POST, OPTIONS")),
        ("GET", "/in/z", 404, None),
        ("GET", "/in", 404, None),
        // The route matches the path, so it answers.
        ("POST", "/in/own", 405, Some("GET, HEAD, OPTIONS")),
        ("DELETE", "/any/x", 200, None),
        ("BREW", "/any", 200, None),
        ("OPTIONS", "/any", 200, None),
        ("GET", "/elsewhere", 418, None),
        // The methods of mounted handlers are unknown.
        ("OPTIONS", "*", 204, None),
    ] {
        let (found, allowed) = said(ask(&mut site, method, target));
        assert_eq!((found, allowed.as_deref()), (status, allow), "{method} {target}");
    }
}

fn files_below_prefixes(on: On) {
    let tree = Tree::new();
    tree.write("index.html", "home");
    tree.write("sub/a b.txt", "a");
    tree.write("sub/deeper/b.txt", "b");
    tree.write("a", "a");
    let settings = FileSettings { listing: true, valid: Duration::from_secs(3600), ..settled() };
    let files = Files::with_settings(tree.path(), settings).unwrap();
    // All mounts share one cache.
    let inner = Router::new().mount("/files", files.clone());
    let mut site = on.serve(
        Router::new()
            .mount("/one", files.clone())
            .mount("/{any}/two", files.clone())
            .mount("/in/ner", inner)
            .mount("/", files),
    );
    for _ in 0..2 {
        for prefix in ["", "/one", "/x%20y/two", "/%6fne", "/in/ner/files"] {
            assert_eq!(body(&mut site, &format!("{prefix}/a")), "a", "{prefix}");
            assert_eq!(body(&mut site, &format!("{prefix}/")), "home", "{prefix}");
            let redirect = ask(&mut site, "GET", &format!("{prefix}/sub?q"));
            assert_eq!((redirect.0, field(&redirect.1, "Location")), (301, Some(&*format!("{prefix}/sub/?q"))));
            if !prefix.is_empty() {
                let redirect = ask(&mut site, "GET", &format!("{prefix}?q"));
                assert_eq!((redirect.0, field(&redirect.1, "Location")), (301, Some(&*format!("{prefix}/?q"))));
            }
            let (_, head, page) = ask(&mut site, "GET", &format!("{prefix}/sub/"));
            let shown = prefix.replace("%20", " ").replace("%6f", "o");
            for heading in ["title", "h1"] {
                assert!(page.contains(&format!("<{heading}>{shown}/sub/</{heading}>")), "{prefix}: {page}");
            }
            assert!(page.contains("href=\"a%20b.txt\"") && page.contains("href=\"../\""), "{page}");
            assert_eq!(field(&head, "Content-Length"), Some(&*page.len().to_string()));
            let missing = ["/missing", "/../a", "/%2e%2e/a", "//a", "/sub//a%20b.txt", "/./a"];
            for rest in missing {
                assert_eq!(ask(&mut site, "GET", &format!("{prefix}{rest}")).0, 404, "{prefix}{rest}");
            }
            assert_eq!(ask(&mut site, "POST", &format!("{prefix}/a")).0, 405);
        }
    }
    // No redirect leads to another host.
    for target in ["//one", "//one/", "//sub", "///one", "//x/two", "/%2fone"] {
        let (status, head, _) = ask(&mut site, "GET", target);
        assert_eq!((status, field(&head, "Location")), (404, None), "{target}");
    }
}

fn no_spelling_bypasses_a_mount(on: On) {
    let tree = Tree::new();
    tree.write("private/secret", "secret");
    tree.write("public", "public");
    let refuse = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        responder.respond(reactor, Response::plain_status(403));
    };
    let files = Files::open(tree.path()).unwrap();
    let mut site = on.serve(Router::new().mount("/private", refuse).mount("/", files));
    assert_eq!(body(&mut site, "/public"), "public");
    for target in ["/private/secret", "/%70rivate/secret", "/p%72ivat%65/secret", "/%70%72%69%76%61%74%65/secret"] {
        assert_eq!(ask(&mut site, "GET", target).0, 403, "{target}");
    }
    for target in [
        "/public/../private/secret",
        "/./private/secret",
        "//private/secret",
        "/private%2fsecret",
        "/%2e/private/secret",
    ] {
        assert_eq!(ask(&mut site, "GET", target).0, 404, "{target}");
    }
}

#[test]
fn errors_name_the_prefix() {
    let mut router = Router::new().mount("/a", echo("a")).mount("/{x}", echo("x"));
    for prefix in ["/a", "/a/", "/%61", "/{y}", "b", "", "/b//c", "/b/../c", "/b/{*rest}", "/b/{", "/x{y}"] {
        let error = router.try_mount(prefix, echo("again")).unwrap_err().to_string();
        assert!(error.starts_with(&format!("route {prefix:?}: ")), "{error}");
    }
    assert!(router.try_mount("/b", echo("b")).is_ok());
}

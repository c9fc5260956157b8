use super::*;

fn reading(value: f64) -> Option<Reading> {
    Some(Reading { value, cpu_us: Some(value / 2.0), syscalls: None })
}

#[test]
fn median_is_the_middle_or_between_the_two_middles() {
    assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), 2.0);
    assert_eq!(quantile(&[4.0, 1.0, 2.0, 3.0], 0.5), 2.5);
    assert_eq!(quantile(&[7.0], 0.99), 7.0);
    assert!(quantile(&[], 0.5).is_nan());
}

#[test]
fn best_follows_the_direction_of_the_unit() {
    assert_eq!(best(&[3.0, 1.0, 2.0], Better::Lower), 1.0);
    assert_eq!(best(&[3.0, 1.0, 2.0], Better::Higher), 3.0);
}

#[test]
fn windows_interleave_and_the_first_round_does_not_count() {
    let order = std::cell::RefCell::new(Vec::new());
    let entrant = |name: &'static str, side| {
        let order = &order;
        let mut value = 100.0;
        Contender::new(name, "1", side, move || {
            order.borrow_mut().push(name);
            value -= 10.0;
            Ok(vec![reading(value)])
        })
    };
    let contest = Contest {
        name: "order".into(),
        cases: vec![Case::new("order", "ns", Better::Higher)],
        contenders: vec![entrant("a", Side::Ours), entrant("b", Side::Peer)],
    };
    let standings = contest.run(2).unwrap();
    assert_eq!(*order.borrow(), ["a", "b", "b", "a", "a", "b"]);
    let row = &standings[0].rows[0];
    assert_eq!((row.best, row.median, row.windows, row.cpu_us), (80.0, 75.0, 2, Some(35.0)));
}

#[test]
fn a_contender_that_did_not_finish_its_work_fails_the_contest() {
    let contest = Contest {
        name: "posts".into(),
        cases: vec![Case::new("posts", "M/s", Better::Higher)],
        contenders: vec![Contender::new("lossy", "1", Side::Peer, || anyhow::bail!("ran 9 of 10 posts"))],
    };
    let error = format!("{:#}", contest.run(3).unwrap_err());
    assert_eq!(error, "posts: contender lossy: ran 9 of 10 posts");
}

#[test]
fn a_case_a_contender_cannot_do_has_no_row() {
    let contest = Contest {
        name: "timers".into(),
        cases: vec![Case::new("insert", "ns", Better::Lower), Case::new("cancel", "ns", Better::Lower)],
        contenders: vec![Contender::new("heap", "1", Side::Peer, || Ok(vec![reading(5.0), None]))],
    };
    let standings = contest.run(1).unwrap();
    assert_eq!((standings[0].rows.len(), standings[1].rows.len()), (1, 0));
}

#[test]
fn a_case_is_compared_with_the_contender_it_names() {
    let entrant = |name, side, value| Contender::new(name, "1", side, move || Ok(vec![reading(value)]));
    let standing_of = |case: Case| {
        let contenders = vec![
            entrant("floor", Side::Floor, 6.0),
            entrant("lucky", Side::Peer, 5.9),
            entrant("pelton", Side::Ours, 6.1),
        ];
        Contest { name: "echo".into(), cases: vec![case], contenders }.run(1).unwrap().remove(0)
    };
    let case = || Case::new("echo", "µs", Better::Lower);
    assert_eq!(standing_of(case()).reference().unwrap().contender, "lucky");
    assert_eq!(standing_of(case().relative_to("floor")).reference().unwrap().contender, "floor");
}

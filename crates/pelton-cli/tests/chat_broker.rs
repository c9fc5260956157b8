//! `pelton chat --broker`: several servers, one room, over a real Redis server.

mod server;

use pelton_testing::RedisServer;
use rustix::process::Signal;
use server::{Client, Server};

fn chat(broker: &RedisServer, workers: &str) -> Server {
    let broker = broker.url();
    Server::start("chat", &["--listen", "127.0.0.1:0", "--workers", workers, "--broker", &broker])
}

/// Connects and enters the room as `name`.
fn chatter(server: &Server, name: &str) -> Client {
    let mut client = Client::tcp(server.address(0));
    client.hear("Welcome.");
    client.say(name);
    client.hear("Type /help for the commands.");
    client
}

#[test]
fn guests_of_two_servers_are_in_one_room() {
    let redis = RedisServer::start(&[]);
    let (east, west) = (chat(&redis, "1"), chat(&redis, "2"));
    let mut ann = chatter(&east, "Ann");
    let mut bob = chatter(&west, "bob");
    ann.hear("* bob has joined");
    ann.say("hello, west");
    bob.hear("Ann: hello, west");
    bob.say("/me waves");
    ann.hear("* bob waves");
    // Guests of the same server hear each other too, and nobody hears itself.
    let mut carl = chatter(&east, "carl");
    ann.hear("* carl has joined");
    bob.hear("* carl has joined");
    carl.say("one");
    carl.say("two");
    for guest in [&mut ann, &mut bob] {
        guest.hear("carl: one");
        guest.hear("carl: two");
    }
    ann.say("/who");
    ann.hear("Here: Ann, bob, carl.");
    // Names belong to one guest of all servers.
    let mut other = Client::tcp(west.address(0));
    other.hear("Welcome.");
    other.say("ANN");
    other.hear("ANN is taken.");
    // A server says goodbye for its guests.
    west.signal(Signal::TERM);
    bob.hear("* The room is closing.");
    west.succeed();
    ann.hear("* bob has left");
    ann.say("/who");
    ann.hear("Here: Ann, carl.");
}

#[test]
fn guests_are_told_when_the_broker_was_gone_and_go_on_when_it_is_back() {
    let mut redis = RedisServer::start(&[]);
    let (east, west) = (chat(&redis, "1"), chat(&redis, "1"));
    let mut ann = chatter(&east, "ann");
    let mut bob = chatter(&west, "bob");
    ann.hear("* bob has joined");
    redis.kill();
    redis.restart();
    ann.hear("* The connection to other servers was interrupted.");
    bob.hear("* The connection to other servers was interrupted.");
    ann.say("still there?");
    bob.hear("ann: still there?");
    ann.say("/who");
    ann.hear("Here: ann, bob.");
}

#[test]
fn rooms_with_different_names_are_apart_and_lies_on_the_broker_do_no_harm() {
    let redis = RedisServer::start(&[]);
    let url = redis.url();
    let lobby = chat(&redis, "1");
    let arguments = ["--listen", "127.0.0.1:0", "--broker", &url, "--room", "cellar"];
    let cellar = Server::start("chat", &arguments);
    let mut ann = chatter(&lobby, "ann");
    let mut also_ann = chatter(&cellar, "ann");
    also_ann.say("/who");
    also_ann.hear("Here: ann.");
    // What anybody with access to the broker could write.
    let lies = [
        "nonsense",
        "[]",
        r#"{\"server\":1,\"what\":\"Dance\"}"#,
        r#"{\"server\":1,\"what\":{\"Line\":{\"line\":\"\\u001b[2Jboo\",\"except\":0}}}"#,
    ];
    for lie in lies {
        redis.tell(&format!("PUBLISH pelton-chat:lobby \"{lie}\""));
    }
    ann.hear("[2Jboo");
    let mut bob = chatter(&lobby, "bob");
    ann.hear("* bob has joined");
    bob.say("fine");
    ann.hear("bob: fine");
}

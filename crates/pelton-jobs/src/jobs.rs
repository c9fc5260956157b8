//! The interface: enqueue, work, look.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pelton::{ActorRef, Handle, Lane, Pool, Promise, Reactor, Reply};

use crate::file::{FileOptions, FileStore};
use crate::job::{check_name, millis};
use crate::store::{Request, Response, Store};
use crate::{
    Cancelled, Enqueued, Error, Failure, Job, JobId, JobInfo, Limits, Memory, QueueStats, Run, State, WorkOptions,
    Worker,
};

/// Jobs in one store, on one loop. Clones share it.
#[derive(Clone)]
pub struct Jobs {
    store: Rc<dyn Store>,
    handle: Handle,
    id: u64,
}

/// The stores of a loop, in the loop's state. Other threads find them by number.
#[derive(Default)]
struct Stores(HashMap<u64, Jobs>);

/// How long to wait before a job that a full lane refused is given back.
const LANE_FULL: Duration = Duration::from_millis(20);

impl Jobs {
    /// Opens a store:
    ///
    /// | URL | jobs are kept | workers |
    /// |---|---|---|
    /// | `memory:` | in memory, until the loop ends | of this loop; see [`Jobs::on`] for others |
    /// | `file:/directory` | in files there, across crashes | of this process |
    /// | `redis://host`, `rediss://`, `unix://`, `redis+sentinel://` | on a server | of all processes, on all machines |
    ///
    /// Files are opened and servers are connected in the background; [`ready`](Jobs::ready) tells how it went. Errors do not
    /// show the URL, which may contain a password.
    pub fn open(reactor: &mut Reactor, url: &str) -> Result<Jobs, Error> {
        if url == "memory:" || url == "memory" {
            return Ok(Jobs::on(reactor, &Memory::new()));
        }
        if let Some(path) = url.strip_prefix("file:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err(Error::BadUrl("it has no directory; write file:/directory".into()));
            }
            return Jobs::open_file(reactor, &FileOptions::new(path));
        }
        #[cfg(feature = "redis")]
        if url.contains("://") {
            return Jobs::open_redis(reactor, url);
        }
        Err(Error::BadUrl("its scheme is none of memory, file, redis, rediss, unix and redis+sentinel".into()))
    }

    /// Uses jobs in memory, which several loops can share.
    pub fn on(reactor: &mut Reactor, memory: &Memory) -> Jobs {
        Jobs::with_store(reactor, Rc::new(memory.clone()))
    }

    /// Opens jobs in files.
    pub fn open_file(reactor: &mut Reactor, options: &FileOptions) -> Result<Jobs, Error> {
        let store = FileStore::open(reactor, options)?;
        Ok(Jobs::with_store(reactor, Rc::new(store)))
    }

    /// Opens jobs on a server that speaks the protocol of Redis, version 6.2 or later.
    #[cfg(feature = "redis")]
    pub fn open_redis(
        reactor: &mut Reactor,
        options: impl TryInto<pelton_redis::Options, Error: Into<pelton_redis::ConfigError>>,
    ) -> Result<Jobs, Error> {
        let store = crate::redis::RedisStore::open(reactor, options.try_into().map_err(Into::into)?)?;
        Ok(Jobs::with_store(reactor, Rc::new(store)))
    }

    fn with_store(reactor: &mut Reactor, store: Rc<dyn Store>) -> Jobs {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Jobs { store, handle: reactor.handle(), id }
    }

    /// Returns a promise that is resolved when the store answers, and rejected if it cannot be opened.
    pub fn ready(&self, reactor: &mut Reactor) -> Promise<(), Error> {
        self.ask(reactor, Request::Queues, |response| matches!(response, Response::Queues(_)).then_some(()))
    }

    /// Enqueues a job. It is stored when the promise is resolved.
    pub fn enqueue(&self, reactor: &mut Reactor, queue: &str, job: Job) -> Promise<Enqueued, Error> {
        if let Err(error) = job.check().and_then(|()| check_name("queue's name", queue)) {
            return Promise::rejected(reactor, error);
        }
        let request = Request::Enqueue { queue: queue.to_owned(), id: JobId::random(), job };
        self.ask(reactor, request, |response| match response {
            Response::Enqueued(enqueued) => Some(enqueued),
            _ => None,
        })
    }

    /// Enqueues a copy of a job again and again, the first one after `every`. Declaring it again, as each worker does that
    /// starts, replaces the job and leaves its times. Copies that nobody could enqueue in time are left out.
    pub fn repeat(
        &self,
        reactor: &mut Reactor,
        queue: &str,
        name: &str,
        every: Duration,
        job: Job,
    ) -> Promise<bool, Error> {
        let checked = job.check().and_then(|()| check_name("queue's name", queue));
        if let Err(error) = checked.and_then(|()| check_name("repeated job's name", name)) {
            return Promise::rejected(reactor, error);
        }
        let (queue, name, every) = (queue.to_owned(), name.to_owned(), millis(every).max(1));
        self.count(reactor, Request::Repeat { queue, name, every, job: Some(job) }).map(|count| count > 0)
    }

    /// Ends the repetition of a job. Returns whether there was one.
    pub fn end_repeat(&self, reactor: &mut Reactor, queue: &str, name: &str) -> Promise<bool, Error> {
        let (queue, name) = (queue.to_owned(), name.to_owned());
        self.count(reactor, Request::Repeat { queue, name, every: 1, job: None }).map(|count| count > 0)
    }

    /// Sets the limits of a queue, for all workers together.
    pub fn configure(&self, reactor: &mut Reactor, queue: &str, limits: Limits) -> Promise<(), Error> {
        if let Err(error) = check_name("queue's name", queue) {
            return Promise::rejected(reactor, error);
        }
        self.count(reactor, Request::Configure { queue: queue.to_owned(), limits }).map(drop)
    }

    /// Cancels a job.
    pub fn cancel(&self, reactor: &mut Reactor, queue: &str, id: &JobId) -> Promise<Cancelled, Error> {
        let request = Request::Cancel { queue: queue.to_owned(), id: id.clone() };
        self.ask(reactor, request, |response| match response {
            Response::Cancelled(cancelled) => Some(cancelled),
            _ => None,
        })
    }

    /// Brings a job back from the dead-letter list, or all of them. Returns how many.
    pub fn requeue(&self, reactor: &mut Reactor, queue: &str, id: Option<&JobId>) -> Promise<u64, Error> {
        self.count(reactor, Request::Requeue { queue: queue.to_owned(), id: id.cloned() })
    }

    /// Removes all jobs in this state. Running ones can only be cancelled. Returns how many.
    pub fn purge(&self, reactor: &mut Reactor, queue: &str, state: State) -> Promise<u64, Error> {
        self.count(reactor, Request::Purge { queue: queue.to_owned(), state })
    }

    /// Returns what is known about a job: its state, its progress, and its result if that is kept.
    pub fn inspect(&self, reactor: &mut Reactor, queue: &str, id: &JobId) -> Promise<Option<JobInfo>, Error> {
        let request = Request::Inspect { queue: queue.to_owned(), id: id.clone() };
        self.ask(reactor, request, |response| match response {
            Response::Info(info) => Some(info.map(|info| *info)),
            _ => None,
        })
    }

    /// Returns jobs in this state, in their order.
    pub fn list(
        &self,
        reactor: &mut Reactor,
        queue: &str,
        state: State,
        skip: u64,
        count: u64,
    ) -> Promise<Vec<JobInfo>, Error> {
        let request = Request::List { queue: queue.to_owned(), state, skip, count };
        self.ask(reactor, request, |response| match response {
            Response::List(list) => Some(list),
            _ => None,
        })
    }

    /// Returns the statistics of a queue.
    pub fn stats(&self, reactor: &mut Reactor, queue: &str) -> Promise<QueueStats, Error> {
        let request = Request::Stats { queue: queue.to_owned() };
        self.ask(reactor, request, |response| match response {
            Response::Stats(stats) => Some(*stats),
            _ => None,
        })
    }

    /// Returns the names of all queues that jobs were enqueued to.
    pub fn queues(&self, reactor: &mut Reactor) -> Promise<Vec<String>, Error> {
        self.ask(reactor, Request::Queues, |response| match response {
            Response::Queues(queues) => Some(queues),
            _ => None,
        })
    }

    /// Works off a queue: calls `handler` on the loop with each run. The handler may keep it and end it later.
    pub fn work(
        &self,
        reactor: &mut Reactor,
        options: WorkOptions,
        handler: impl FnMut(&mut Reactor, Run) + 'static,
    ) -> Result<Worker, Error> {
        Worker::start(reactor, self.store.clone(), options, Box::new(handler))
    }

    /// Works off a queue with tasks of the loop.
    pub fn work_async<F>(
        &self,
        reactor: &mut Reactor,
        options: WorkOptions,
        mut handler: impl FnMut(Run) -> F + 'static,
    ) -> Result<Worker, Error>
    where
        F: Future<Output = Result<Vec<u8>, Failure>> + 'static,
    {
        self.work(reactor, options, move |reactor, run| {
            let future = handler(run.clone());
            reactor.spawn(async move { run.end_with(future.await) }).detach();
        })
    }

    /// Works off a queue with a function that may block, on the threads of a lane.
    pub fn work_on_lane(
        &self,
        reactor: &mut Reactor,
        options: WorkOptions,
        lane: Lane,
        handler: impl Fn(&Run) -> Result<Vec<u8>, Failure> + Send + Sync + 'static,
    ) -> Result<Worker, Error> {
        let handler = std::sync::Arc::new(handler);
        self.work(reactor, options, move |reactor, run| {
            let (handler, kept) = (handler.clone(), run.clone());
            let deferred = reactor.defer(lane, move || run.end_with(handler(&run)), |_, _| {});
            if deferred.is_err() {
                reactor.after(LANE_FULL, move |_| kept.release());
            }
        })
    }

    /// Works off a queue with a function on a pool, by the keys of jobs.
    pub fn work_on_pool(
        &self,
        reactor: &mut Reactor,
        options: WorkOptions,
        pool: &Pool,
        handler: impl Fn(&Run) -> Result<Vec<u8>, Failure> + Send + Sync + 'static,
    ) -> Result<Worker, Error> {
        let (handler, keyed) = (std::sync::Arc::new(handler), pool.keyed::<String>());
        self.work(reactor, options, move |reactor, run| {
            let (handler, kept) = (handler.clone(), run.clone());
            let key = run.key().unwrap_or(run.id().as_str()).to_owned();
            if keyed.submit(key, move || run.end_with(handler(&run))).is_err() {
                reactor.after(LANE_FULL, move |_| kept.release());
            }
        })
    }

    /// Works off a queue with an actor, which gets each run as a message and ends it.
    pub fn work_on_actor(
        &self,
        reactor: &mut Reactor,
        options: WorkOptions,
        actor: ActorRef<Run>,
    ) -> Result<Worker, Error> {
        self.work(reactor, options, move |reactor, run| {
            // The mailbox never has more messages than the worker may run at once.
            if let Err(refused) = actor.send(run) {
                reactor.after(LANE_FULL, move |_| refused.into_inner().release());
            }
        })
    }

    /// Returns a handle that enqueues from any thread. The store stays open until the loop ends.
    pub fn sender(&self, reactor: &mut Reactor) -> JobSender {
        reactor.state::<Stores>().0.entry(self.id).or_insert_with(|| self.clone());
        JobSender { handle: self.handle.clone(), id: self.id }
    }

    fn count(&self, reactor: &mut Reactor, request: Request) -> Promise<u64, Error> {
        self.ask(reactor, request, |response| match response {
            Response::Count(count) => Some(count),
            _ => None,
        })
    }

    fn ask<T: 'static>(
        &self,
        reactor: &mut Reactor,
        request: Request,
        read: impl FnOnce(Response) -> Option<T> + 'static,
    ) -> Promise<T, Error> {
        let (deferred, promise) = reactor.promise();
        let name = request.name();
        let then = move |_: &mut Reactor, answer: Result<Response, Error>| {
            let nonsense = || Error::Nonsense { request: name, found: "another response".into() };
            let result = answer.and_then(|response| read(response).ok_or_else(nonsense));
            // Nothing else settles it.
            drop(deferred.settle(result));
        };
        self.store.ask(reactor, request, Box::new(then));
        promise
    }
}

impl Request {
    /// Returns the name, for errors.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Request::Enqueue { .. } => "enqueue",
            Request::Take(_) => "take",
            Request::Finish { .. } => "finish",
            Request::Renew { .. } => "renew",
            Request::Progress { .. } => "progress",
            Request::Cancel { .. } => "cancel",
            Request::Requeue { .. } => "requeue",
            Request::Purge { .. } => "purge",
            Request::Repeat { .. } => "repeat",
            Request::Configure { .. } => "configure",
            Request::Leave { .. } => "leave",
            Request::Inspect { .. } => "inspect",
            Request::List { .. } => "list",
            Request::Stats { .. } => "stats",
            Request::Queues => "queues",
            Request::Recover => "recover",
        }
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Enqueues jobs from any thread. Made by [`Jobs::sender`].
///
/// ```
/// use pelton::Reactor;
/// use pelton_jobs::{Job, Jobs};
///
/// let mut reactor = Reactor::new()?;
/// let jobs = Jobs::open(&mut reactor, "memory:")?;
/// let (sender, handle) = (jobs.sender(&mut reactor), reactor.handle());
/// let other = std::thread::spawn(move || {
///     let enqueued = sender.enqueue("mail", Job::new("ana@example.org")).wait();
///     handle.stop();
///     enqueued
/// });
/// reactor.run()?;
/// assert!(other.join().unwrap()?.is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct JobSender {
    handle: Handle,
    id: u64,
}

impl JobSender {
    /// Enqueues a job. It is stored when the reply has arrived.
    pub fn enqueue(&self, queue: &str, job: Job) -> Reply<Result<Enqueued, Error>> {
        let (replier, reply) = Reply::pair();
        let (id, queue) = (self.id, queue.to_owned());
        // If the loop has stopped, the reply is lost.
        let _ = self.handle.post(move |reactor: &mut Reactor| {
            let Some(jobs) = reactor.state::<Stores>().0.get(&id).cloned() else {
                return replier.give(Err(Error::Closed));
            };
            jobs.enqueue(reactor, &queue, job).done(move |_, result| {
                replier.give(result.map_err(|rejected| match rejected {
                    pelton::Rejected::Failed(error) => error,
                    _ => Error::Closed,
                }));
            });
        });
        reply
    }
}

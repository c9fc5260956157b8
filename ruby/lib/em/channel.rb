# frozen_string_literal: true

module EventMachine
  # Sends each message to all subscribers, on the reactor's thread.
  class Channel
    def initialize
      @subscribers = {}
      @uid = 0
    end

    def num_subscribers
      @subscribers.size
    end

    # Returns a name to unsubscribe with.
    def subscribe(*args, &block)
      name = (@uid += 1)
      callback = EventMachine.Callback(*args, &block)
      EventMachine.schedule { @subscribers[name] = callback }
      name
    end

    def unsubscribe(name)
      EventMachine.schedule { @subscribers.delete(name) }
    end

    def push(*items)
      items = items.dup
      EventMachine.schedule do
        items.each { |item| @subscribers.values.each { |subscriber| subscriber.call(item) } }
      end
    end
    alias << push

    # Receives the next message only.
    def pop(*args, &block)
      callback = EventMachine.Callback(*args, &block)
      EventMachine.schedule do
        name = subscribe do |*message|
          unsubscribe(name)
          callback.call(*message)
        end
      end
    end
  end
end
